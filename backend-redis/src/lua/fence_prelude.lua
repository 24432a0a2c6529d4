do
  local highest = redis.call('GET', KEYS[1])
  if highest and (#highest ~= 20 or string.find(highest, '%D') or highest >= '2048') then
    return redis.error_reply('LEASEHOLDMARK the fencing mark was not written by leasehold')
  end
  if highest and highest > ARGV[1] then
    return redis.error_reply('LEASEHOLDSTALE ' .. highest)
  end
  if highest ~= ARGV[1] then
    redis.call('SET', KEYS[1], ARGV[1])
  end
end
