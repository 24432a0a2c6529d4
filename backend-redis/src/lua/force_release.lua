-- Ends a grant by its token, and leaves a note for the holder's next renewal.
-- KEYS: lease, floor, note.
-- ARGV: token (20 digits), channel, how long the name stays taken in ms (0: not at all), the start of a record
-- without an owner (34 bytes), floor's ttl in ms, note, shortest life of the note in ms.
local record = redis.call('GET', KEYS[1])
if not record then
  return 0
end
local floor = redis.pcall('GET', KEYS[2])
if type(floor) ~= 'string' then
  floor = ''
end
local kind = string.sub(record, 1, 2)
local left = redis.call('PTTL', KEYS[1])
local token = string.sub(record, 36, 55)
if string.sub(token, 1, 1) == '-' then
  token = floor
end
if (kind ~= '1H' and kind ~= '1K') or token ~= ARGV[1] then
  return {record, left, floor}
end
if kind == '1H' then
  local life = math.max(left, tonumber(ARGV[7]))
  redis.call('SET', KEYS[3], string.sub(record, 3, 34) .. ARGV[6], 'PX', string.format('%.0f', life))
end
if ARGV[3] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[4] .. string.sub(record, 35, 68), 'PX', ARGV[3])
  local floor_left = redis.call('PTTL', KEYS[2])
  if floor_left >= 0 and floor_left * 2 < tonumber(ARGV[5]) then
    redis.call('PEXPIRE', KEYS[2], ARGV[5])
  end
end
redis.call('PUBLISH', ARGV[2], '')
return 1
