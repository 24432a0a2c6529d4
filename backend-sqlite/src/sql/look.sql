-- One name as it stands, with this clock's sighting of this version of its row.
--
-- ?1 name  ?2 clock id
-- Returns: the namespace's floor, the row (all NULL, `present` too, if there is none), and the sighting.
SELECT (SELECT value FROM leasehold_meta WHERE key = 'floor') AS floor,
       l.name IS NOT NULL AS present,
       l.name, l.format, l.owner, l.token, l.seq, l.expires_us, l.ttl_us, l.clock_id, l.acquired_ms, l.info,
       l.revoked_owner, l.revoked_by, l.revoked_reason,
       s.expires_us AS sighted_until_us
  FROM (SELECT ?1 AS wanted)
  LEFT JOIN leasehold_leases AS l ON l.name = wanted
  LEFT JOIN leasehold_sightings AS s
         ON s.name = l.name AND s.clock_id = ?2 AND s.token = l.token AND s.seq = l.seq
