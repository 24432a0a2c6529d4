-- Renews a batch. Never creates a grant; one that has run out is gone from the store already.
-- KEYS: namespace, then lease and floor for each.
-- ARGV: for each: owner (34 bytes), ttl in ms, floor's ttl in ms, token (20 digits or empty), token floor
-- (20 digits or empty).
-- Answers the time, then a letter for each: r renewed, g gone, b the floor is none, x no larger token.
local clock = redis.call('TIME')
local now = string.format('%010d%06d', clock[1], clock[2])
local out = {now}

--include common.lua

-- A token larger than `wanted` for a record that holds a smaller one, in record and floor.
local function lift(lease, floor_key, record, wanted, ttl)
  local floor = get(floor_key)
  if floor and not is_token(floor) then
    return 'b'
  end
  local told = string.sub(record, 36, 55)
  local token = is_token(told) and told or floor or ''
  if wanted < token then
    return 'r'
  end
  local high = wanted
  if floor and floor > high then high = floor end
  token = after(high, now)
  if not token then
    return 'x'
  end
  set_floor(floor_key, token, redis.call('GET', KEYS[1]), ttl, now)
  if is_token(told) then
    redis.call('SET', lease, string.sub(record, 1, 35) .. token .. string.sub(record, 56), 'KEEPTTL')
  end
  return 'r'
end

-- The floor was lost: while nobody else was granted it is the holder's token.
local function restore(lease, floor_key, record, token, ttl)
  local told = string.sub(record, 36, 55)
  if token == '' or is_token(told) then
    return
  end
  local namespace = redis.call('GET', KEYS[1])
  if namespace and namespace > token then
    redis.call('SET', lease, string.sub(record, 1, 35) .. token .. string.sub(record, 56), 'KEEPTTL')
    token = namespace
  end
  set_floor(floor_key, token, namespace, ttl, now)
end

local a = 1
for k = 2, #KEYS, 2 do
  local lease, floor = KEYS[k], KEYS[k + 1]
  local ttl, floor_ttl, token, wanted = ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4]
  local record = get(lease)
  local answer = 'g'
  if type(record) == 'string' and string.sub(record, 1, 34) == ARGV[a] then
    answer = 'r'
    if wanted ~= '' then
      answer = lift(lease, floor, record, wanted, floor_ttl)
    end
    if answer == 'r' then
      redis.call('PEXPIRE', lease, ttl)
      local left = redis.call('PTTL', floor)
      if left == -2 then
        restore(lease, floor, record, token, floor_ttl)
      elseif left >= 0 and left * 2 < tonumber(floor_ttl) then
        redis.call('PEXPIRE', floor, floor_ttl)
      end
    end
  end
  out[#out + 1] = answer
  a = a + 5
end
return table.concat(out)
