-- Ends the grant of one owner. One statement; whoever holds the name instead is not touched.
--
-- ?1 name  ?2 owner  ?3 until when the name stays taken, µs of the boot clock, or 0  ?4 how long that is, µs
-- ?5 clock id
-- Changes one row if the grant was this owner's. The row stays: its token is the next one's floor.
UPDATE leasehold_leases
   SET owner = NULL, info = '', seq = seq + 1, expires_us = ?3, ttl_us = ?4, clock_id = ?5
 WHERE name = ?1 AND owner = ?2 AND format = 1
