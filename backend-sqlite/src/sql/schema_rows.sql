-- The rows of `leasehold_meta` that are there, and their values where they can be read.
SELECT key, CASE WHEN typeof(value) = 'integer' THEN value END
  FROM leasehold_meta
 WHERE key IN ('schema', 'floor')
