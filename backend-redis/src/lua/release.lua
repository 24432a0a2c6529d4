-- Ends the grant of one owner, and touches no other owner's. Whom nobody has waited for is told to nobody.
-- KEYS: lease.
-- ARGV: the start of the record (35 bytes).
-- Answers 1 when the grant was there, 0 when nothing is, 2 when the name is somebody else's.
local start = redis.call('GETRANGE', KEYS[1], '0', '34')
if start == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
if string.sub(start, 1, 34) == string.sub(ARGV[1], 1, 34) then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', string.sub(KEYS[1], 1, -2) .. 'c', '')
  return 1
end
return start == '' and 0 or 2
