-- Raises the floor of the namespace: later grants of every name are larger than ?1.
INSERT INTO leasehold_meta (key, value) VALUES ('floor', ?1)
ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)
