-- Shows names as they are. Changes nothing.
-- KEYS: namespace, then lease, floor and note for each.
-- Answers the namespace's floor, then for each: 0 (none), 1 (a text) or 2 (of another type), the record, the
-- time left in ms, the floor, the note.
--include common.lua

local namespace = get(KEYS[1])
local out = {type(namespace) == 'string' and namespace or ''}
for k = 2, #KEYS, 3 do
  local record, kind = get(KEYS[k]), 1
  if type(record) == 'table' then
    record, kind = '', 2
  elseif not record then
    record, kind = '', 0
  end
  local floor = get(KEYS[k + 1])
  if type(floor) == 'table' then
    floor = '?'
  end
  local note = get(KEYS[k + 2])
  if type(note) ~= 'string' then
    note = ''
  end
  out[#out + 1] = {kind, record, redis.call('PTTL', KEYS[k]), floor or '', note}
end
return out
