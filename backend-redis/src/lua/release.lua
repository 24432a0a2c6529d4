-- Ends the grant of one owner, and touches no other owner's.
-- KEYS: lease, floor.
-- ARGV: owner (34 bytes), channel.
local record = redis.call('GET', KEYS[1])
if not record then
  return 0
end
if string.sub(record, 1, 34) == ARGV[1] then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', ARGV[2], '')
  return 1
end
local floor = redis.pcall('GET', KEYS[2])
if type(floor) ~= 'string' then
  floor = ''
end
return {record, redis.call('PTTL', KEYS[1]), floor}
