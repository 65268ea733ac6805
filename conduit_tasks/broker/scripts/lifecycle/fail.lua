-- fail: a node cannot go on; the pipeline, or one isolated destination, stops with this error (C8, C16).
--
-- @key scope    hash  the pipeline's state, or one destination's delivery
-- @arg stopped  text  the status that means stopped here: `degraded` (pipeline) or `stopped` (destination)
-- @arg error    json  {node, error, error_class, micro_batch}
-- @returns ok 1 if this error is the one stored, 0 if an earlier one is kept (invariant 9)

-- What the user stopped by force stays so: errors of nodes torn down by it are not its reason.
local s = redis.call('HMGET', K.scope, 'status', 'forced')
if s[1] == 'stopped' and (A.stopped == 'degraded' or s[2]) then
  return {'ok', redis.call('HGET', K.scope, 'error') == A.error and 1 or 0}
end
return {'ok', first_error(K.scope, A.stopped, A.error)}
