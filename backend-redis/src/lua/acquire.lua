-- Grants the name to one owner, or tells who has it. An ordinary grant is TIME, SET, SET: while nobody else is
-- granted, the floor is the holder's token.
-- KEYS: lease, floor, namespace.
-- ARGV: record, ttl in ms, the last moment at which it may be granted (16 digits); then, as far as they are not what
-- they mostly are: the epoch (4 digits), the token floor (20 digits, or empty for none), and an empty text where the
-- ttl is so long that the floor's life must be set anew each time.
local clock = redis.call('TIME')
local now = clock[1] .. clock[2]
if #now ~= 16 then
  now = string.format('%010d%06d', clock[1], clock[2])
end
if now > ARGV[3] then
  return {'late', now}
end
local mine = (ARGV[4] or '0000') .. now

local granted = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
local last = false
if granted then
  last = redis.pcall('SET', KEYS[2], mine, 'KEEPTTL', 'GET')
  -- What is no text has no length of 20 either.
  if last and #last == 20 and last < mine and string.find(last, '^%d+$') and (not ARGV[5] or mine > ARGV[5]) then
    -- The floor's life begins anew when these digits change, every 10,000 s: it would cost as much as the rest.
    if string.sub(last, 1, 10) ~= string.sub(mine, 1, 10) or ARGV[6] then
      redis.call('PEXPIRE', KEYS[2], string.format('%.0f', tonumber(ARGV[2]) * 2 + ${FLOOR_TTL_MS}))
    end
    return mine
  end
end
-- From here on the clock alone does not decide. What is refused leaves floor and lease as they were.

local wanted, life = ARGV[5] or '', tonumber(ARGV[2]) * 2 + ${FLOOR_TTL_MS}

--include common.lua

-- Takes back what was written, the floor first: a right that is missing must not leave a lower one.
local function refuse(...)
  if type(last) == 'string' then
    redis.call('SET', KEYS[2], last, 'KEEPTTL')
  elseif not last then
    redis.call('DEL', KEYS[2])
  end
  redis.call('DEL', KEYS[1])
  return {...}
end

if granted then
  if last and not is_token(last) then
    return refuse('bad', 'floor')
  end
  local namespace = redis.pcall('GET', KEYS[3])
  if namespace and not is_token(namespace) then
    local refusal = refuse('bad', 'namespace')
    -- Raises what is more than a wrong type.
    get(KEYS[3])
    return refusal
  end
  namespace = namespace or ''
  local high = last or namespace
  if wanted > high then
    high = wanted
  end
  local token = mine
  if high >= mine then
    token = after(high, now)
    if not token then
      return refuse('exhausted', now)
    end
  end
  set_floor(KEYS[2], token, namespace, life, now)
  return {'granted', token, now, namespace}
end

local record = redis.call('GET', KEYS[1])
local floor = get(KEYS[2])
if floor and not is_token(floor) then
  return {'bad', 'floor'}
end
if string.sub(record, 1, 34) ~= string.sub(ARGV[1], 1, 34) then
  -- The release is to be published.
  if string.sub(record, 1, 2) == '1H' and string.sub(record, 35, 35) == '-' then
    redis.call('SET', KEYS[1], string.sub(record, 1, 34) .. '+' .. string.sub(record, 36), 'KEEPTTL')
  end
  return {'held', record, redis.call('PTTL', KEYS[1]), floor or ''}
end

-- The same owner asks again: same token, fresh expiry. A floor above it is honoured.
local token = string.sub(record, 36, 55)
local told = is_token(token)
if not told then
  token = floor
end
local namespace = ''
if not token or wanted >= token then
  namespace = get(KEYS[3])
  if namespace and not is_token(namespace) then
    return {'bad', 'namespace'}
  end
  namespace = namespace or ''
  local high = floor or namespace
  if token and token > high then high = token end
  if wanted > high then high = wanted end
  token = mine
  if high >= mine then
    token = after(high, now)
    if not token then
      return {'exhausted', now}
    end
  end
  set_floor(KEYS[2], token, namespace, life, now)
  if told then
    redis.call('SET', KEYS[1], string.sub(record, 1, 35) .. token .. string.sub(record, 56), 'KEEPTTL')
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'granted', token, now, namespace}
