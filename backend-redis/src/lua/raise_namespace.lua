-- Raises the floor of the names that have none of their own. KEYS: namespace. ARGV: token (20 digits).
--include common.lua

local namespace = get(KEYS[1])
if namespace and not is_token(namespace) then
  return -1
end
if namespace and namespace >= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
