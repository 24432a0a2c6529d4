-- The names of a batch as they stand, in the batch's order; for telling why they were not renewed.
--
-- ?1 JSON array of names  ?2 clock id
-- Returns: as `look.sql`, one row for each.
SELECT (SELECT value FROM leasehold_meta WHERE key = 'floor') AS floor,
       l.name IS NOT NULL AS present,
       l.name, l.format, l.owner, l.token, l.seq, l.expires_us, l.ttl_us, l.clock_id, l.acquired_ms, l.info,
       l.revoked_owner, l.revoked_by, l.revoked_reason,
       s.expires_us AS sighted_until_us
  FROM json_each(?1) AS wanted
  LEFT JOIN leasehold_leases AS l ON l.name = wanted.value
  LEFT JOIN leasehold_sightings AS s
         ON s.name = l.name AND s.clock_id = ?2 AND s.token = l.token AND s.seq = l.seq
 ORDER BY wanted.key
