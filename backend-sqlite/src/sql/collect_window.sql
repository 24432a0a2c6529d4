-- A piece of the names, in order, as it is when nobody holds the write lock.
--
-- ?1 after this name  ?2 so many  ?3 clock id  ?4 now, µs of the boot clock
-- Returns: its last name, how many rows it has, how many of them are free, how many were dated by
-- another clock and not sighted by this one, and whether anything was sighted ever.
SELECT max(w.name) AS last, count(*) AS scanned,
       coalesce(sum(w.expires_us = 0 OR (w.clock_id = ?3 AND w.expires_us <= ?4)
                 OR coalesce(s.expires_us <= ?4, false)), 0) AS free,
       coalesce(sum(w.expires_us <> 0 AND w.clock_id <> ?3 AND s.name IS NULL), 0) AS unsighted,
       EXISTS (SELECT 1 FROM leasehold_sightings) AS sightings
  FROM (SELECT * FROM leasehold_leases WHERE name > ?1 ORDER BY name LIMIT ?2) AS w
  LEFT JOIN leasehold_sightings AS s
         ON s.name = w.name AND s.clock_id = ?3 AND s.token = w.token AND s.seq = w.seq
