-- Grants the name to one owner, or tells who has it. An ordinary grant is TIME, SET, SET: while nobody else is
-- granted, the floor is the holder's token.
-- KEYS: lease, floor, namespace.
-- ARGV: record, ttl in ms, not after (16 digits), epoch (4 digits), token floor (20 digits), floor's ttl in ms, and
-- an empty text where the ttl is so long that the floor's must be set anew each time.
local clock = redis.call('TIME')
local now = clock[1] .. string.sub('00000' .. clock[2], -6)
if #now ~= 16 then
  now = string.format('%010d%06d', clock[1], clock[2])
end
if now > ARGV[3] then
  return {'late', now}
end
local mine = ARGV[4] .. now

local granted = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
local last = false
if granted then
  last = redis.pcall('SET', KEYS[2], mine, 'KEEPTTL', 'GET')
  if type(last) == 'string' and #last == 20 and last < mine and mine > ARGV[5] and not string.find(last, '%D') then
    -- The floor's life begins anew when these digits change, every 10,000 s: it would cost as much as the rest.
    if string.sub(last, 1, 10) ~= string.sub(mine, 1, 10) or ARGV[7] then
      redis.call('PEXPIRE', KEYS[2], ARGV[6])
    end
    return mine
  end
end
-- From here on the clock alone does not decide. What is refused leaves floor and lease as they were.

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

-- The token after `high`, not below the clock; nil when the epoch has none left.
local function after(high)
  local epoch, native = string.sub(high, 1, 4), string.sub(high, 5)
  if native >= '4503599627370495' then
    return nil
  end
  local next = string.format('%016.0f', tonumber(native) + 1)
  if next < now then
    next = now
  end
  return epoch .. next
end

-- Writes a floor that the clock of this epoch does not cover by itself: it outlives the time by which it is
-- ahead, and one of a higher epoch than the namespace's is kept for good.
local function set_floor(token, namespace)
  if namespace == '' then
    namespace = '0000'
  end
  if string.sub(token, 1, 4) > string.sub(namespace, 1, 4) then
    redis.call('SET', KEYS[2], token)
  else
    local ahead = math.max(0, tonumber(string.sub(token, 5)) - tonumber(now)) / 1000
    redis.call('SET', KEYS[2], token, 'PX', string.format('%.0f', ahead + tonumber(ARGV[6])))
  end
end

if granted then
  if type(last) == 'table' then
    redis.call('DEL', KEYS[1])
    return {'bad', 'floor'}
  end
  if last and not is_token(last) then
    redis.call('SET', KEYS[2], last, 'KEEPTTL')
    redis.call('DEL', KEYS[1])
    return {'bad', 'floor'}
  end
  local namespace = get(KEYS[3])
  if namespace and not is_token(namespace) then
    redis.call('DEL', KEYS[1])
    if last then set_floor(last, '') else redis.call('DEL', KEYS[2]) end
    return {'bad', 'namespace'}
  end
  namespace = namespace or ''
  local high = last or namespace
  if ARGV[5] > high then
    high = ARGV[5]
  end
  local token = mine
  if high >= mine then
    token = after(high)
    if not token then
      redis.call('DEL', KEYS[1])
      if last then set_floor(last, namespace) else redis.call('DEL', KEYS[2]) end
      return {'exhausted', now}
    end
  end
  set_floor(token, namespace)
  return {'granted', token, now, namespace}
end

local record = redis.call('GET', KEYS[1])
local floor = get(KEYS[2])
if floor and not is_token(floor) then
  return {'bad', 'floor'}
end
if string.sub(record, 1, 34) ~= string.sub(ARGV[1], 1, 34) then
  return {'held', record, redis.call('PTTL', KEYS[1]), floor or ''}
end

-- The same owner asks again: same token, fresh expiry. A floor above it is honoured.
local token = string.sub(record, 35, 54)
local told = is_token(token)
if not told then
  token = floor
end
local namespace = ''
if not token or ARGV[5] >= token then
  namespace = get(KEYS[3])
  if namespace and not is_token(namespace) then
    return {'bad', 'namespace'}
  end
  namespace = namespace or ''
  local high = floor or namespace
  if token and token > high then high = token end
  if ARGV[5] > high then high = ARGV[5] end
  token = mine
  if high >= mine then
    token = after(high)
    if not token then
      return {'exhausted', now}
    end
  end
  set_floor(token, namespace)
  if told then
    redis.call('SET', KEYS[1], string.sub(record, 1, 34) .. token .. string.sub(record, 55), 'KEEPTTL')
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'granted', token, now, namespace}
