-- begin_ack: records what a source is about to be told, before it is told, if all of it is sealed and confirmed by
-- every destination given (C12, invariant 1).
--
-- @key pipeline  hash   sealed
-- @key ack       hash   m: acked up to here; from, to: the intent, absent if none; lives as long as the pipeline
-- @key lease     hash   acks.<source>
-- @key intent    hash   part -> token of the intent; removed by commit_ack
-- @key cursors   hash*1000  deliveries that must have passed `to`; none with ack-on: stored
-- @arg token     int    of the lease; 0: not asked
-- @arg from      int    first micro-batch of this ack
-- @arg to        int    last one
-- @arg position  text*10000  part and token (JSON text) each; nothing if the source has no slice in them
-- @returns fenced | ok 1 if an intent stands (this one or an earlier one), 0 if there is nothing to tell

if A.token ~= '0' then
  local no = fenced(K.lease, A.token)
  if no then return no end
  renew(K.lease, A.token)
end
local a = redis.call('HMGET', K.ack, 'm', 'to')
if a[2] then return {'ok', 1} end
-- Invariant 2: an in-order prefix; somebody else's ack since the caller looked makes this one void.
if number(a[1]) + 1 ~= tonumber(A.from) then return {'ok', 0} end
-- Invariant 1: sealed at the least, and confirmed by every destination given.
local limit = number(redis.call('HGET', K.pipeline, 'sealed'))
for _, key in ipairs(K.cursors) do limit = math.min(limit, number(redis.call('HGET', key, 'cursor'))) end
if tonumber(A.to) > limit then
  return broken('Invariant 1: an ack of micro-batch', A.to, 'while only', text(limit), 'is confirmed')
end
if #A.position == 0 then
  redis.call('HSET', K.ack, 'm', A.to)
  return {'ok', 0}
end
redis.call('HSET', K.ack, 'from', A.from, 'to', A.to)
for i = 1, #A.position, 2 do redis.call('HSET', K.intent, A.position[i], A.position[i + 1]) end
return {'ok', 1}
