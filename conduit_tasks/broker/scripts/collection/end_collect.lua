-- end_collect: removes what Redis knows of a micro-batch, now that its files are gone.
--
-- @key pipeline     hash  collected, collecting; held, held_from: see `seal`
-- @key micro_batch  hash  state, bytes; removed here
-- @arg m            int   number of the micro-batch
-- @returns ok

local m = tonumber(A.m)
if m <= number(redis.call('HGET', K.pipeline, 'collected')) then return {'ok'} end
local mb = redis.call('HMGET', K.micro_batch, 'state', 'bytes')
if mb[1] ~= 'collecting' then
  return broken('Invariant 6: collection of micro-batch', A.m, 'was never begun')
end
local from = redis.call('HGET', K.pipeline, 'held_from')
if from and m >= tonumber(from) then redis.call('HINCRBY', K.pipeline, 'held', text(0 - number(mb[2]))) end
redis.call('DEL', K.micro_batch)
redis.call('HSET', K.pipeline, 'collected', A.m)
redis.call('HDEL', K.pipeline, 'collecting')
return {'ok'}
