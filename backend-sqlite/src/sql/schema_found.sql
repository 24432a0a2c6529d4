-- Which of leasehold's tables are in the file, and whether the leases have the notes of version 2.
SELECT coalesce(max(type = 'table' AND name = 'leasehold_meta'), 0) AS meta,
       coalesce(max(type = 'table' AND name = 'leasehold_leases'), 0) AS leases,
       coalesce(max(type = 'table' AND name = 'leasehold_sightings'), 0) AS sightings,
       coalesce(max(type = 'trigger' AND name = 'leasehold_leases_deleted'), 0) AS deleted,
       EXISTS (SELECT 1 FROM pragma_table_info('leasehold_leases') WHERE name = 'revoked_until_ms') AS notes
  FROM sqlite_schema
 WHERE name GLOB 'leasehold_*'
