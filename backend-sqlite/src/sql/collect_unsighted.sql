-- Rows of a piece of the names that another clock dated and this one has not seen in this version.
--
-- ?1 after this name  ?2 up to this one  ?3 clock id
SELECT l.name, l.token, l.seq, l.ttl_us
  FROM leasehold_leases AS l
  LEFT JOIN leasehold_sightings AS s
         ON s.name = l.name AND s.clock_id = ?3 AND s.token = l.token AND s.seq = l.seq
 WHERE l.name > ?1 AND l.name <= ?2 AND l.clock_id <> ?3 AND l.expires_us <> 0 AND s.name IS NULL
   AND typeof(l.token) = 'integer' AND typeof(l.seq) = 'integer' AND typeof(l.ttl_us) = 'integer'
 LIMIT ?4
