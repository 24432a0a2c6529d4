-- What concerns the whole file: the version of its tables, and the floor of all names.
CREATE TABLE IF NOT EXISTS leasehold_meta (
    key   TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
