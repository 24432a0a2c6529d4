-- Accepts a token that is not below the highest one seen, and remembers it. One statement.
--
-- ?1 name  ?2 token
-- Returns: one row if it was accepted.
INSERT INTO leasehold_fence AS f (name, highest) VALUES (?1, ?2)
ON CONFLICT (name) DO UPDATE SET highest = excluded.highest
 WHERE typeof(f.highest) = 'integer' AND excluded.highest >= f.highest
RETURNING highest
