-- The marks of resources, in tables of their own: a user's open transaction that holds a mark touches no
-- lease.
CREATE TABLE IF NOT EXISTS leasehold_fence (
    name    TEXT    NOT NULL PRIMARY KEY,
    highest INTEGER NOT NULL CHECK (typeof(highest) = 'integer' AND highest > 0)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS leasehold_fence_values (
    name  TEXT    NOT NULL,
    key   TEXT    NOT NULL,
    value BLOB    NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (name, key)
);
