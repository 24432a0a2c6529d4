-- Raises the floor of the namespace: later grants of every name are larger than ?1. Returns no row if the floor
-- that is there cannot be read: it may be larger.
INSERT INTO leasehold_meta (key, value) VALUES ('floor', ?1)
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)
 WHERE typeof(value) = 'integer' AND value >= 0
RETURNING value
