-- replay_begin: a destination's share of a replay begins, or goes on where it was left (X3).
--
-- @grows
-- @key pipeline     hash  status
-- @key destination  hash  status
-- @key lease        hash  of the destination
-- @key replay       hash  prepared, generation, epoch, finished; number of a portion -> ranges done. Expires after seven
--                         retentions
-- @arg token        int   of the lease
-- @arg prepared     text  names what was prepared: progress in anything else counts for nothing
-- @arg generation   text  one that has finished in another generation begins again, in an epoch of its own
-- @arg remember     int   milliseconds it is remembered
-- @returns ok (what is done is read behind it, in portions: a replay has any number of them)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local have = redis.call('HMGET', K.replay, 'prepared', 'generation', 'finished')
if have[1] ~= A.prepared or (have[3] and have[2] ~= A.generation) then
  redis.call('UNLINK', K.replay)
  redis.call('HSET', K.replay, 'prepared', A.prepared, 'epoch', A.token)
end
redis.call('HSET', K.replay, 'generation', A.generation)
redis.call('PEXPIRE', K.replay, A.remember)
return {'ok'}
