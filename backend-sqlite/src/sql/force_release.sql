-- Ends a grant by its token, and notes by whom and why for the old holder's next renewal; or frees a name that
-- is kept, by the token of its last holder. One statement. The floor that is shown of a kept name will do too:
-- whatever is granted afterwards is larger, so that it names the same state.
--
-- ?1 name  ?2 token  ?3 until when the name stays taken, µs of the boot clock, or 0  ?4 how long that is, µs
-- ?5 clock id  ?6 by  ?7 reason  ?8 now, µs of the boot clock
-- Returns: one row if the token was still the one. It stays in the row: later tokens are larger.
UPDATE leasehold_leases
   SET revoked_owner  = coalesce(owner, revoked_owner),
       revoked_by     = iif(owner IS NULL, revoked_by, ?6),
       revoked_reason = iif(owner IS NULL, revoked_reason, ?7),
       -- The note is kept for the old holder's ttl, by the wall clock: it is for people.
       revoked_until_ms = iif(owner IS NULL, revoked_until_ms,
           CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + ttl_us / 1000 + 1000),
       owner = NULL, info = '', seq = seq + 1, expires_us = ?3, ttl_us = ?4, clock_id = ?5
 WHERE name = ?1 AND format = 1
   AND CASE WHEN owner IS NOT NULL THEN token = ?2
            ELSE expires_us <> 0 AND NOT (clock_id = ?5 AND expires_us <= ?8)
                 AND ?2 IN (token, max(token, (SELECT value FROM leasehold_meta WHERE key = 'floor'))) END
RETURNING token
