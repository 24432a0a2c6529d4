-- Renews a batch. Never creates a grant; one that has run out is gone from the store already.
-- KEYS: namespace, then lease and floor for each.
-- ARGV: for each: owner (34 bytes), ttl in ms, floor's ttl in ms, token (20 digits or empty), token floor
-- (20 digits or empty).
-- Answers the time, then a letter for each: r renewed, g gone, b the floor is none, x no larger token.
local clock = redis.call('TIME')
local now = string.format('%010d%06d', clock[1], clock[2])
local out = {now}

-- What is at a key; of another type: a table. A missing right is raised: it says nothing of the key.
local function get(key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    redis.call('GET', key)
  end
  return found
end

local function is_token(text)
  return type(text) == 'string' and #text == 20 and not string.find(text, '%D')
end

local function set_floor(key, token, ttl)
  local namespace = redis.call('GET', KEYS[1]) or '0000'
  if string.sub(token, 1, 4) > string.sub(namespace, 1, 4) then
    redis.call('SET', key, token)
  else
    local ahead = math.max(0, tonumber(string.sub(token, 5)) - tonumber(now)) / 1000
    redis.call('SET', key, token, 'PX', string.format('%.0f', ahead + tonumber(ttl)))
  end
end

-- A token larger than `wanted` for a record that holds a smaller one, in record and floor.
local function lift(lease, floor_key, record, wanted, ttl)
  local floor = get(floor_key)
  if floor and not is_token(floor) then
    return 'b'
  end
  local told = string.sub(record, 35, 54)
  local token = is_token(told) and told or floor or ''
  if wanted < token then
    return 'r'
  end
  local high = wanted
  if floor and floor > high then high = floor end
  local native = string.sub(high, 5)
  if native >= '4503599627370495' then
    return 'x'
  end
  native = string.format('%016.0f', tonumber(native) + 1)
  if native < now then native = now end
  token = string.sub(high, 1, 4) .. native
  set_floor(floor_key, token, ttl)
  if is_token(told) then
    redis.call('SET', lease, string.sub(record, 1, 34) .. token .. string.sub(record, 55), 'KEEPTTL')
  end
  return 'r'
end

-- The floor was lost: while nobody else was granted it is the holder's token.
local function restore(lease, floor_key, record, token, ttl)
  local told = string.sub(record, 35, 54)
  if token == '' or is_token(told) then
    return
  end
  local namespace = redis.call('GET', KEYS[1]) or ''
  if namespace > token then
    redis.call('SET', lease, string.sub(record, 1, 34) .. token .. string.sub(record, 55), 'KEEPTTL')
    token = namespace
  end
  set_floor(floor_key, token, ttl)
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
