-- The last step: the version, and the floor. Where tables were lost, the floor rises above every token that the
-- file still tells of; it is never lowered.
INSERT INTO leasehold_meta (key, value) VALUES ('schema', 2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value;

INSERT INTO leasehold_meta (key, value)
SELECT 'floor', coalesce(max(token), 0)
  FROM (SELECT token FROM leasehold_leases    WHERE typeof(token) = 'integer'
        UNION ALL
        SELECT token FROM leasehold_sightings WHERE typeof(token) = 'integer')
 WHERE true
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value);
