-- end_collect: the files are gone; so is what Redis knows of the micro-batch.
--
-- @key pipeline     hash  collected, collecting
-- @key micro_batch  hash  state; removed here
-- @arg m            int   number of the micro-batch
-- @returns ok

local m = tonumber(A.m)
if m <= number(redis.call('HGET', K.pipeline, 'collected')) then return {'ok'} end
if redis.call('HGET', K.micro_batch, 'state') ~= 'collecting' then
  return broken('Invariant 6: collection of micro-batch', A.m, 'was never begun')
end
redis.call('DEL', K.micro_batch)
redis.call('HSET', K.pipeline, 'collected', A.m)
redis.call('HDEL', K.pipeline, 'collecting')
return {'ok'}
