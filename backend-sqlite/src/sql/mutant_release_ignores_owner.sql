-- PLANTED DEFECT, compiled only to prove the tests: as `release.sql`, but anybody's grant is ended.
UPDATE leasehold_leases
   SET owner = NULL, info = '', seq = seq + 1, expires_us = ?3, ttl_us = ?4, clock_id = ?5
 WHERE name = ?1 AND ?2 = ?2 AND format = 1
