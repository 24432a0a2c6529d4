-- What is at a key; of another type: a table. A missing right is raised: it says nothing of the key.
local function get(key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    redis.call('GET', key)
  end
  return found
end

-- Epochs have 11 bits, native parts 52.
local function is_token(text)
  return type(text) == 'string' and #text == 20 and not string.find(text, '%D')
    and string.sub(text, 1, 4) < '2048' and string.sub(text, 5) <= '4503599627370495'
end

-- The token after `high`, not below the clock; nil when the epoch has none left.
local function after(high, now)
  local native = string.sub(high, 5)
  if native >= '4503599627370495' then
    return nil
  end
  local next = string.format('%016.0f', tonumber(native) + 1)
  if next < now then
    next = now
  end
  return string.sub(high, 1, 4) .. next
end

-- Writes a floor, to live for `life` ms. It outlives the time by which it is ahead of the clock as well, and one of
-- a higher epoch than the namespace's is kept for good.
local function set_floor(key, token, namespace, life, now)
  if not namespace or namespace == '' then
    namespace = '0000'
  end
  if string.sub(token, 1, 4) > string.sub(namespace, 1, 4) then
    redis.call('SET', key, token)
  else
    local ahead = math.max(0, tonumber(string.sub(token, 5)) - tonumber(now)) / 1000
    redis.call('SET', key, token, 'PX', string.format('%.0f', ahead + tonumber(life)))
  end
end
