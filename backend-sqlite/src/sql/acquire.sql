-- Grants a name, or refuses by returning no row. One statement: look, token and grant are one step.
--
-- ?1 name  ?2 owner  ?3 now, µs of the boot clock  ?4 store ttl, µs  ?5 clock id  ?6 holder info
-- ?7 token floor of the request, or 0  ?8 end of the grant, µs of the boot clock
-- ?9 wall clock in ms, for people
-- Returns: the token. NOT NULL refuses a token that is NULL (code 1299): beyond the epoch's last, or without a
-- floor of all names that can be read. A look at the name tells the two apart.
--
-- In the update, `excluded.token` is the next token as the floors and the wall clock have it, which is read here,
-- in the statement; 4503599627370495 is 2^52 - 1. A wall clock before 1970, or beyond 2^52 µs (2112), counts as
-- 1970: the counter orders.
--
-- VALUES and no SELECT: for RETURNING, SQLite would copy the rows of a SELECT through a temporary table.
INSERT INTO leasehold_leases AS l
       (name, format, owner, token, seq, expires_us, ttl_us, clock_id, acquired_ms, info)
VALUES (?1, 1, ?2,
       (SELECT CASE WHEN typeof(value) = 'integer' AND value >= 0
                     AND max(?7, value) & 4503599627370495 <> 4503599627370495
                    THEN ((max(?7, value) >> 52) << 52)
                       | max((max(?7, value) & 4503599627370495) + 1,
                             CASE WHEN unixepoch('subsec') BETWEEN 0 AND 4503599627.3704
                                  THEN CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000 ELSE 0 END) END
          FROM leasehold_meta WHERE key = 'floor'),
       1, ?8, ?4, ?5, ?9, ?6)
ON CONFLICT (name) DO UPDATE
   SET owner       = excluded.owner,
       token       = CASE
           -- The same owner asks again: the same token, unless a floor forbids it.
           WHEN l.owner = excluded.owner AND l.token > ?7 AND NOT (l.clock_id = ?5 AND l.expires_us <= ?3)
               THEN l.token
           WHEN l.token & 4503599627370495 = 4503599627370495 AND excluded.token >> 52 <= l.token >> 52
               THEN NULL
           WHEN excluded.token >> 52 >= l.token >> 52 THEN max(l.token + 1, excluded.token)
           -- The name is in a later epoch than the floors.
           ELSE max(l.token + 1, ((l.token >> 52) << 52)
                                 | CASE WHEN unixepoch('subsec') BETWEEN 0 AND 4503599627.3704
                                        THEN CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000
                                        ELSE 0 END) END,
       seq         = l.seq + 1,
       expires_us  = excluded.expires_us,
       ttl_us      = excluded.ttl_us,
       clock_id    = excluded.clock_id,
       acquired_ms = CASE
           WHEN l.owner = excluded.owner AND NOT (l.clock_id = ?5 AND l.expires_us <= ?3) THEN l.acquired_ms
           ELSE excluded.acquired_ms END,
       info        = excluded.info
 -- A row that leasehold did not write is left alone.
 WHERE l.format = 1 AND typeof(l.token) = 'integer' AND l.token > 0 AND typeof(l.seq) = 'integer'
   AND typeof(l.expires_us) = 'integer' AND l.expires_us >= 0
   AND typeof(l.ttl_us) = 'integer' AND l.ttl_us >= 0 AND typeof(l.clock_id) = 'text'
   AND typeof(l.acquired_ms) = 'integer' AND l.acquired_ms >= 0 AND typeof(l.info) = 'text'
   AND (l.owner IS NULL
     OR (typeof(l.owner) = 'text' AND length(l.owner) = 32 AND l.owner NOT GLOB '*[^0-9a-f]*'))
   AND (l.owner = excluded.owner
     OR l.expires_us = 0
     OR (l.clock_id = ?5 AND l.expires_us <= ?3)
     -- A row of another clock: only when this clock has watched this very version for a whole ttl.
     OR EXISTS (SELECT 1 FROM leasehold_sightings AS s
                 WHERE s.name = l.name AND s.clock_id = ?5 AND s.token = l.token AND s.seq = l.seq
                   AND s.expires_us <= ?3))
RETURNING token
