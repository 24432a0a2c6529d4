-- The leases, as version 1 had them: kept as it was, because files of it exist; `schema_notes.sql` goes on from
-- here.
--
-- One row a name that is held, kept, or was held lately. The row outlives its grant, because its token is
-- the floor of the next one.
CREATE TABLE leasehold_leases (
    name        TEXT    NOT NULL PRIMARY KEY CHECK (typeof(name) = 'text'),
    format      INTEGER NOT NULL,                                             -- layout of this row
    owner       TEXT             CHECK (owner IS NULL OR length(owner) = 32), -- NULL: nobody holds it
    token       INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0),
    seq         INTEGER NOT NULL CHECK (typeof(seq) = 'integer'),             -- moves with every write
    expires_us  INTEGER NOT NULL CHECK (typeof(expires_us) = 'integer'),      -- on clock_id's boot clock; 0: free
    ttl_us      INTEGER NOT NULL CHECK (typeof(ttl_us) = 'integer'),
    clock_id    TEXT    NOT NULL,                                             -- whose boot clock
    acquired_ms INTEGER NOT NULL,                                             -- wall clock, for people
    info        TEXT    NOT NULL                                              -- what the holder says of itself
) WITHOUT ROWID;
