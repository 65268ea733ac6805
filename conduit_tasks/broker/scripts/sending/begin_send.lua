-- begin_send: says how far sending may have come before anything is sent, for `guarantee: at-most-once` (SEMANTICS B8).
--
-- What lies at or below the mark and is not confirmed is never sent again. The holder may also take the mark back to
-- what it really sent, in any status: what it did not send is not given up for a stop.
--
-- @key pipeline     hash   status
-- @key destination  hash   begun: <epoch>:<micro-batch>:<seq>; lives with the pipeline
-- @key lease        hash   of the destination
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg epoch        int    0: live
-- @arg seq          int    the mark, -1: nothing was sent
-- @returns ok

local no = guard_done(K.lease, A.token)
if no then return no end
local epoch, m, seq = string.match(redis.call('HGET', K.destination, 'begun') or '', '^(%d+):(%d+):(-?%d+)$')
local back = epoch == A.epoch and m == A.m and tonumber(A.seq) <= tonumber(seq)
no = not back and halted(K.pipeline, K.destination)
if no then return no end
redis.call('HSET', K.destination, 'begun', A.epoch .. ':' .. A.m .. ':' .. A.seq)
return {'ok'}
