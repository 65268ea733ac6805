-- attempted: an executor's attempt has ended and sends no more, so the next one need not wait for its expiry; if it
-- gave up, why is kept.
--
-- @key lease  hash  attempt, attempt_until, and those of shards (see `attempt`); gave_up: why an attempt ended without progress, as long as its driver holds
-- @arg token  int   of the attempt
-- @arg error  text  why it gives up; empty: it does not
-- @returns ok

local l = redis.call('HMGET', K.lease, 'attempt', 'attempt_until')
if l[1] == A.token and number(l[2]) > 0 then
  -- Its token is used up: whoever still speaks under it is not heard.
  redis.call('HSET', K.lease, 'attempt', text(number(l[1]) + 1), 'attempt_until', '0')
  redis.call('HDEL', K.lease, 'attempt_nonce')
  if A.error ~= '' then redis.call('HSET', K.lease, 'gave_up', A.error) end
end
local shard = redis.call('HGET', K.lease, 'shard:' .. A.token)
if shard then
  redis.call('HDEL', K.lease, 'shard:' .. A.token, 'attempt:' .. shard, 'attempt_until:' .. shard, 'attempt_nonce:' .. shard)
  if A.error ~= '' then redis.call('HSET', K.lease, 'gave_up', A.error) end
end
return {'ok'}
