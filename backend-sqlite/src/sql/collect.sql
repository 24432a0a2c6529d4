-- Deletes the rows of a piece of the names that nobody holds; the trigger raises the floor to their tokens
-- in the same step. A row that leasehold did not write, and one with a fresh note of a forced release, stay.
--
-- ?1 after this name  ?2 up to this one  ?3 clock id  ?4 now, µs of the boot clock
DELETE FROM leasehold_leases AS l
 WHERE l.name > ?1 AND l.name <= ?2
   AND l.format = 1 AND typeof(l.token) = 'integer' AND l.token > 0 AND typeof(l.seq) = 'integer'
   AND typeof(l.expires_us) = 'integer' AND l.expires_us >= 0
   AND typeof(l.ttl_us) = 'integer' AND l.ttl_us >= 0 AND typeof(l.clock_id) = 'text'
   AND typeof(l.acquired_ms) = 'integer' AND l.acquired_ms >= 0 AND typeof(l.info) = 'text'
   AND (l.owner IS NULL
     OR (typeof(l.owner) = 'text' AND length(l.owner) = 32 AND l.owner NOT GLOB '*[^0-9a-f]*'))
   -- A wall clock that cannot be read keeps no note.
   AND coalesce(l.revoked_until_ms <= unixepoch('subsec') * 1000, true)
   -- The trigger needs a floor to raise: without it the tokens would be forgotten with their rows.
   AND EXISTS (SELECT 1 FROM leasehold_meta WHERE key = 'floor' AND typeof(value) = 'integer' AND value >= 0)
   AND (l.expires_us = 0
     OR (l.clock_id = ?3 AND l.expires_us <= ?4)
     OR EXISTS (SELECT 1 FROM leasehold_sightings AS s
                 WHERE s.name = l.name AND s.clock_id = ?3 AND s.token = l.token AND s.seq = l.seq
                   AND s.expires_us <= ?4))
