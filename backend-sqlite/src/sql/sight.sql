-- Notes that this clock has seen this version of a row that another clock dated. The first sighting of a
-- version stands: a second look does not move its end.
--
-- ?1 name  ?2 clock id  ?3 token  ?4 seq  ?5 end: this clock, read after the version was, plus the row's ttl
INSERT INTO leasehold_sightings AS s (name, clock_id, token, seq, expires_us)
VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (name, clock_id) DO UPDATE
   SET token = excluded.token, seq = excluded.seq, expires_us = excluded.expires_us
 -- An end further off than this one was noted by a clock of the same id that has since begun anew.
 WHERE s.token <> excluded.token OR s.seq <> excluded.seq OR s.expires_us > excluded.expires_us
