-- Accepts a token that is not smaller than the highest one seen, and writes under it.
-- KEYS: mark, values.
-- ARGV: token (20 digits), what to do (advance, put, purge), key, value.
-- Answers an empty text when accepted, the highest token when stale.
--include common.lua

local highest = get(KEYS[1])
if highest and not is_token(highest) then
  return {'bad'}
end
if highest and highest > ARGV[1] then
  return highest
end
if ARGV[2] ~= 'advance' then
  local kind = redis.call('TYPE', KEYS[2]).ok
  if kind ~= 'none' and kind ~= 'hash' then
    return {'bad'}
  end
  if ARGV[2] == 'put' then
    redis.call('HSET', KEYS[2], ARGV[3], ARGV[1] .. ARGV[4])
  else
    redis.call('DEL', KEYS[2])
  end
end
if highest ~= ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[1])
end
return ''
