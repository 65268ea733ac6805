-- told: the destination's step was called for all micro-batches up to `m`, in order; where nothing is known yet, it is to be called
-- for what is delivered from now on.
--
-- @key destination  hash   cursor, told
-- @key lease        hash   of the step
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @returns ok TOLD

local no = guard_done(K.lease, A.token)
if no then return no end
local found = redis.call('HGET', K.destination, 'told')
if not found then
  found = redis.call('HGET', K.destination, 'cursor') or '0'
  redis.call('HSET', K.destination, 'told', found)
elseif number(found) < tonumber(A.m) then
  found = A.m
  redis.call('HSET', K.destination, 'told', found)
end
return {'ok', tonumber(found)}
