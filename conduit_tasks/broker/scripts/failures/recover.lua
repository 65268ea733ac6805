-- recover: a node failed, and is to be tried again after a delay that grows; at the limit the pipeline is degraded.
--
-- Counted are failures without progress in between: stage, seal, confirm and an ack clear them. Degraded means with the
-- first of them as the stored error (invariant 9).
--
-- @key pipeline  hash  status, error
-- @key lease     hash  of the node: failures, failure (id of the last), error, error_at (of the first), retry_at
-- @arg id        text  names this failure: repeated, it counts once
-- @arg error     json  {node, error, error_class, micro_batch}
-- @arg min       int   microseconds of the first delay
-- @arg max       int   microseconds of the longest
-- @arg factor    text  by which each delay exceeds the one before
-- @arg retries   int   failures tolerated; one more degrades; -1: no limit
-- @returns ok FAILURES RETRY_AT

local f = redis.call('HMGET', K.lease, 'failure', 'failures', 'retry_at')
if f[1] == A.id then return {'ok', f[2], f[3]} end
if halted(K.pipeline) then return {'ok', f[2] or '0', f[3] or '0'} end
local n, now = number(f[2]) + 1, now_us()
local delay = math.min(tonumber(A.max), tonumber(A.min) * math.pow(tonumber(A.factor), math.min(n - 1, 60)))
local retry_at = text(now + delay)
if redis.call('HSETNX', K.lease, 'error', A.error) == 1 then redis.call('HSET', K.lease, 'error_at', text(now)) end
redis.call('HSET', K.lease, 'failure', A.id, 'failures', text(n), 'retry_at', retry_at)
if tonumber(A.retries) >= 0 and n > tonumber(A.retries) then
  first_error(K.pipeline, 'degraded', redis.call('HGET', K.lease, 'error'))
end
return {'ok', text(n), retry_at}
