-- Raises the floors of names. A holder keeps its token: it is written into the record before the floor leaves it.
-- KEYS: namespace, then lease and floor for each.
-- ARGV: token (20 digits), floor's ttl in ms.
-- Answers how many floors are none.
-- What is at a key; of another type: a table. A missing right is raised: it says nothing of the key.
local function get(key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    redis.call('GET', key)
  end
  return found
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local namespace = redis.call('GET', KEYS[1]) or '0000'
local bad = 0
for k = 2, #KEYS, 2 do
  local lease, key = KEYS[k], KEYS[k + 1]
  local floor = get(key)
  if floor and (type(floor) ~= 'string' or #floor ~= 20 or string.find(floor, '%D')) then
    bad = bad + 1
  elseif not floor or floor < ARGV[1] then
    local record = get(lease)
    if floor and type(record) == 'string' and #record >= 67 and string.sub(record, 1, 1) == '1'
      and string.sub(record, 35, 35) == '-' then
      redis.call('SET', lease, string.sub(record, 1, 34) .. floor .. string.sub(record, 55), 'KEEPTTL')
    end
    if string.sub(ARGV[1], 1, 4) > string.sub(namespace, 1, 4) then
      redis.call('SET', key, ARGV[1])
    else
      local left = math.max(redis.call('PTTL', key), tonumber(ARGV[2]))
      local ahead = math.max(0, tonumber(string.sub(ARGV[1], 5)) - now) / 1000
      redis.call('SET', key, ARGV[1], 'PX', string.format('%.0f', left + ahead))
    end
  end
end
return bad
