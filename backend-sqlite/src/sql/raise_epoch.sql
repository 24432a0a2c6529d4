-- Raises the epoch by one, above everything that was granted. Returns the new epoch, or no row if it was
-- the last one (2047).
UPDATE leasehold_meta
   SET value = ((max(value, coalesce((SELECT max(token) FROM leasehold_leases
                                       WHERE typeof(token) = 'integer'), 0)) >> 52) + 1) << 52
 WHERE key = 'floor' AND typeof(value) = 'integer' AND value >= 0
   AND max(value, coalesce((SELECT max(token) FROM leasehold_leases
                             WHERE typeof(token) = 'integer'), 0)) >> 52 < 2047
RETURNING value >> 52
