-- Deletes a bounded number of sightings, in a piece of the names, of versions that are no longer there.
--
-- ?1 after this name  ?2 up to this one  ?3 at most so many
DELETE FROM leasehold_sightings
 WHERE (name, clock_id) IN
       (SELECT s.name, s.clock_id FROM leasehold_sightings AS s
         WHERE s.name > ?1 AND s.name <= ?2
           AND NOT EXISTS (SELECT 1 FROM leasehold_leases AS l
                            WHERE l.name = s.name AND l.token = s.token AND l.seq = s.seq)
         LIMIT ?3)
