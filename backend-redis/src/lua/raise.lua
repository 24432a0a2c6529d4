-- Raises the floors of names. A holder keeps its token: it is written into the record before the floor leaves it.
-- KEYS: namespace, then lease and floor for each.
-- ARGV: token (20 digits; zeros change nothing), floor's ttl in ms.
-- Answers which floor is none, counted from 1, or 0.
--include common.lua

local clock = redis.call('TIME')
local now = string.format('%010d%06d', clock[1], clock[2])
local namespace = redis.call('GET', KEYS[1])
local bad = 0
for k = 2, #KEYS, 2 do
  local lease, key = KEYS[k], KEYS[k + 1]
  local floor = get(key)
  if floor and not is_token(floor) then
    bad = k / 2
  elseif (floor or '00000000000000000000') < ARGV[1] then
    local record = get(lease)
    if floor and type(record) == 'string' and #record >= 68 and string.sub(record, 1, 1) == '1'
      and string.sub(record, 36, 36) == '-' then
      redis.call('SET', lease, string.sub(record, 1, 35) .. floor .. string.sub(record, 56), 'KEEPTTL')
    end
    set_floor(key, ARGV[1], namespace, math.max(redis.call('PTTL', key), tonumber(ARGV[2])), now)
  end
end
return bad
