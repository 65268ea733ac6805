-- stop: a graceful stop begins (C15), or a forceful one is done (C16); of one destination always at once (X1).
--
-- @key scope     hash  the pipeline's state, or one destination's delivery: status, forced;
--                      deadline of the pipeline (microseconds since the epoch)
-- @arg force     int   1: stopped at once
-- @arg deadline  int   microseconds from now in which the graceful stop should be drained
-- @returns ok STATUS

local status = redis.call('HGET', K.scope, 'status')
if A.force == '1' then
  if status ~= 'stopped' then redis.call('HSET', K.scope, 'status', 'stopped', 'forced', '1') end
elseif status == 'degraded' then
  -- Nothing moves in a degraded pipeline, so there is nothing to wait for; its error stays readable.
  redis.call('HSET', K.scope, 'status', 'stopped', 'forced', '1')
elseif status ~= 'stopping' and status ~= 'stopped' then
  redis.call('HSET', K.scope, 'status', 'stopping', 'deadline', text(now_us() + number(A.deadline)))
end
return {'ok', redis.call('HGET', K.scope, 'status')}
