-- turn: one replay at a time delivers to a destination; of those that wait, the one with the earliest interval is next.
--
-- @key turns  hash  run -> <from> <until> <has>: where its interval begins, until when it counts without a word (both
--                   microseconds), 1 if it has the turn; each until its replay ends or lapses
-- @arg run    text  who asks
-- @arg from   int   where its interval begins, microseconds since the epoch
-- @arg ttl    int   microseconds it counts from now on; 0: it has ended
-- @arg take   int   1: it takes the turn if nobody has it and it is next; it keeps it until it ends or lapses
-- @returns ok RUN (who has the turn, or is next; empty if none is under way)

local now = now_us()
local function read(value)
  local from, till, has = string.match(value, '^(%S+) (%S+) (%S+)$')
  return tonumber(from), tonumber(till), has == '1'
end
local mine = redis.call('HGET', K.turns, A.run)
if A.ttl == '0' then
  redis.call('HDEL', K.turns, A.run)
else
  local _, _, has = read(mine or '0 0 0')
  redis.call('HSET', K.turns, A.run, A.from .. ' ' .. text(now + tonumber(A.ttl)) .. (has and ' 1' or ' 0'))
end
local all, first, earliest, taken = redis.call('HGETALL', K.turns), '', nil, nil
for i = 1, #all, 2 do
  local from, till, has = read(all[i + 1])
  if within(till, now, A.ttl) < till and A.ttl ~= '0' then
    till = within(till, now, A.ttl)
    redis.call('HSET', K.turns, all[i], text(from) .. ' ' .. text(till) .. (has and ' 1' or ' 0'))
  end
  if till < now then
    redis.call('HDEL', K.turns, all[i])
  else
    if has then taken = all[i] end
    if not earliest or from < earliest or (from == earliest and all[i] < first) then
      first, earliest = all[i], from
    end
  end
end
if not taken and A.take == '1' and first == A.run then
  redis.call('HSET', K.turns, A.run, A.from .. ' ' .. text(now + tonumber(A.ttl)) .. ' 1')
end
return {'ok', taken or first}
