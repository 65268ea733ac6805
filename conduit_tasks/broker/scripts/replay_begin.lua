-- replay_begin: a destination's share of a replay begins, or goes on where it was left (X3).
--
-- @key pipeline     hash  status
-- @key destination  hash  status
-- @key lease        hash  of the destination
-- @key replay       hash  prepared, finished; number of a portion -> ranges done. Expires after seven retentions
-- @arg token        int   of the lease
-- @arg prepared     text  names what was prepared: progress in anything else counts for nothing
-- @arg again        int   1: one that has finished begins anew
-- @arg remember     int   milliseconds it is remembered
-- @returns ok FIELD VALUE… (of `replay`)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local have = redis.call('HMGET', K.replay, 'prepared', 'finished')
if have[1] ~= A.prepared or (A.again == '1' and have[2]) then
  redis.call('DEL', K.replay)
  redis.call('HSET', K.replay, 'prepared', A.prepared)
end
redis.call('PEXPIRE', K.replay, A.remember)
return {'ok', unpack(redis.call('HGETALL', K.replay))}
