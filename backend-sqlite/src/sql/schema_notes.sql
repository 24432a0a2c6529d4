-- Version 2: the reason of a forced release in the row.
ALTER TABLE leasehold_leases ADD COLUMN revoked_owner    TEXT;
ALTER TABLE leasehold_leases ADD COLUMN revoked_by       TEXT;
ALTER TABLE leasehold_leases ADD COLUMN revoked_reason   TEXT;
ALTER TABLE leasehold_leases ADD COLUMN revoked_until_ms INTEGER; -- the row is kept so long, on the wall clock
