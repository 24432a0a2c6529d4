-- Names that are taken and start with a prefix, in byte order. A row that leasehold did not write is
-- listed too, so that the caller notices it.
--
-- ?1 prefix  ?2 only after this name, or ''  ?3 at most so many  ?4 clock id  ?5 now, µs of the boot clock
-- Returns: as `look.sql`. The byte FF, which no UTF-8 text holds, sorts after every name with the prefix.
SELECT (SELECT value FROM leasehold_meta WHERE key = 'floor') AS floor,
       1 AS present,
       l.name, l.format, l.owner, l.token, l.seq, l.expires_us, l.ttl_us, l.clock_id, l.acquired_ms, l.info,
       l.revoked_owner, l.revoked_by, l.revoked_reason,
       s.expires_us AS sighted_until_us
  FROM leasehold_leases AS l
  LEFT JOIN leasehold_sightings AS s
         ON s.name = l.name AND s.clock_id = ?4 AND s.token = l.token AND s.seq = l.seq
 WHERE l.name >= ?1 AND l.name < ?1 || CAST(x'FF' AS TEXT) AND l.name > ?2
   AND l.expires_us IS NOT 0
   AND NOT (l.clock_id = ?4 AND typeof(l.expires_us) = 'integer' AND l.expires_us <= ?5)
   AND coalesce(s.expires_us > ?5, true)
 ORDER BY l.name
 LIMIT ?3
