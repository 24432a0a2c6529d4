-- Ends a grant by its token, and notes by whom and why for the old holder's next renewal. One statement.
--
-- ?1 name  ?2 token  ?3 until when the name stays taken, µs of the boot clock, or 0  ?4 how long that is, µs
-- ?5 clock id  ?6 by  ?7 reason
-- Returns: one row if the token was still the one. It stays in the row: later tokens are larger.
UPDATE leasehold_leases
   SET revoked_owner = owner, revoked_by = ?6, revoked_reason = ?7,
       -- The note is kept for the old holder's ttl, by the wall clock: it is for people.
       revoked_until_ms = CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + ttl_us / 1000 + 1000,
       owner = NULL, info = '', seq = seq + 1, expires_us = ?3, ttl_us = ?4, clock_id = ?5
 WHERE name = ?1 AND token = ?2 AND owner IS NOT NULL AND format = 1
RETURNING token
