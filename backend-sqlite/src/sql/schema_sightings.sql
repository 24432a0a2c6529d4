-- Version 2: sightings instead of re-dated rows, and the floor raised by whoever deletes a row.
--
-- "This clock saw this version of that row at a time after which its ttl ends here." A row of another
-- clock is taken over by a sighting that has run out, and by nothing else.
CREATE TABLE IF NOT EXISTS leasehold_sightings (
    name       TEXT    NOT NULL,
    clock_id   TEXT    NOT NULL,
    token      INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    PRIMARY KEY (name, clock_id)
) WITHOUT ROWID;

-- A token that was granted is never granted again, whoever deletes its row: the floor of all names rises
-- in the same step.
CREATE TRIGGER IF NOT EXISTS leasehold_leases_deleted AFTER DELETE ON leasehold_leases
BEGIN
    UPDATE leasehold_meta SET value = OLD.token
     WHERE key = 'floor' AND typeof(OLD.token) = 'integer' AND OLD.token > value;
    DELETE FROM leasehold_sightings WHERE name = OLD.name;
END;
