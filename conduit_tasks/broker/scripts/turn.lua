-- turn: replays to one destination deliver in the order of their intervals: who is next of those under way.
--
-- @key turns  hash  run -> <from> <until>: where its interval begins, and until when it counts without a word (both
--                   microseconds); each until its replay ends or lapses
-- @arg run    text  who asks
-- @arg from   int   where its interval begins, microseconds since the epoch
-- @arg ttl    int   microseconds it counts from now on; 0: it has ended
-- @returns ok RUN (whose interval is the earliest; empty where none is under way)

local now = now_us()
if A.ttl == '0' then
  redis.call('HDEL', K.turns, A.run)
else
  redis.call('HSET', K.turns, A.run, A.from .. ' ' .. text(now + tonumber(A.ttl)))
end
local all, first, earliest = redis.call('HGETALL', K.turns), '', nil
for i = 1, #all, 2 do
  local from, till = string.match(all[i + 1], '^(%S+) (%S+)$')
  from = tonumber(from)
  if tonumber(till) < now then
    redis.call('HDEL', K.turns, all[i])
  elseif not earliest or from < earliest or (from == earliest and all[i] < first) then
    first, earliest = all[i], from
  end
end
return {'ok', first}
