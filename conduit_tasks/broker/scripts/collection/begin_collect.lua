-- begin_collect: marks the next micro-batch to go, whose files are about to be removed; refused while a cursor or an
-- ack needs it (invariant 6).
--
-- @key pipeline     hash   collected: all up to here are gone; collecting: the one whose files are being removed;
--                          rebuilding
-- @key micro_batch  hash   state
-- @key each         hash*1000  deliveries of all destinations, then ack states of all sources
-- @arg m            int    number of the micro-batch
-- @arg count        int    how many of `each` are deliveries
-- @returns ok | stopped

if redis.call('HEXISTS', K.pipeline, 'rebuilding') == 1 then return {'stopped', 'rebuilding', ''} end
local m, collected = tonumber(A.m), number(redis.call('HGET', K.pipeline, 'collected'))
if m <= collected then return {'ok'} end
if m ~= collected + 1 then return broken('Invariant 6: micro-batch', A.m, 'is collected before', text(collected + 1)) end
for i, key in ipairs(K.each) do
  local passed = number(redis.call('HGET', key, i <= tonumber(A.count) and 'cursor' or 'm'))
  if passed < m then return broken('Invariant 6: micro-batch', A.m, 'is still needed by', key) end
end
redis.call('HSET', K.micro_batch, 'state', 'collecting')
redis.call('HSET', K.pipeline, 'collecting', A.m)
return {'ok'}
