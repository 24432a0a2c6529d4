-- Renews a batch. One statement; a grant that has run out on this clock is not extended, and a name that
-- changed hands is not touched.
--
-- ?1 the batch: a JSON array of [name, owner, store ttl in µs, token floor or 0]
-- ?2 now, µs of the boot clock  ?3 clock id  ?4 now again, rounded up: no grant ends early
-- Returns: name and owner of what was renewed. A token beyond the epoch's last is NULL (code 1299).
UPDATE leasehold_leases AS l
   SET expires_us = ?4 + r.ttl_us,
       ttl_us     = r.ttl_us,
       clock_id   = ?3,
       seq        = l.seq + 1,
       token      = CASE
           WHEN r.floor < l.token THEN l.token
           WHEN r.floor & 4503599627370495 = 4503599627370495 THEN NULL
           ELSE ((r.floor >> 52) << 52)
              | max((r.floor & 4503599627370495) + 1,
                    -- As in `acquire.sql`: a wall clock that no token can hold says nothing.
                    CASE WHEN r.wall_ms BETWEEN 0 AND 4503599627370 THEN r.wall_ms * 1000 ELSE 0 END) END
  FROM (SELECT value ->> 0 AS name, value ->> 1 AS owner, value ->> 2 AS ttl_us, value ->> 3 AS floor,
               CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS wall_ms
          FROM json_each(?1)) AS r
 WHERE l.name = r.name AND l.owner = r.owner
   AND l.format = 1 AND typeof(l.token) = 'integer' AND l.token > 0 AND typeof(l.seq) = 'integer'
   AND typeof(l.expires_us) = 'integer'
   AND NOT (l.clock_id = ?3 AND l.expires_us <= ?2)
RETURNING name, owner
