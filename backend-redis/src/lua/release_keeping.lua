-- Ends the grant of one owner, and touches no other owner's; the name stays taken for a while.
-- KEYS: lease, floor.
-- ARGV: owner (34 bytes), channel, how long the name stays taken in ms, the start of a record
-- without an owner (34 bytes), floor's ttl in ms.
local record = redis.call('GET', KEYS[1])
if not record then
  return 0
end
if string.sub(record, 1, 34) == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[4] .. string.sub(record, 35, 68), 'PX', ARGV[3])
  local left = redis.call('PTTL', KEYS[2])
  if left >= 0 and left * 2 < tonumber(ARGV[5]) then
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
  end
  redis.call('PUBLISH', ARGV[2], '')
  return 1
end
local floor = redis.pcall('GET', KEYS[2])
if type(floor) ~= 'string' then
  floor = ''
end
return {record, redis.call('PTTL', KEYS[1]), floor}
