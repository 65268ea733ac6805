-- begin_send: says how far sending may have come before anything is sent, for `guarantee: at-most-once` (SEMANTICS B8).
--
-- What lies at or below the mark and is not confirmed is never sent again. The holder may also take the mark back to
-- what it really sent.
--
-- @key pipeline     hash   status
-- @key destination  hash   begun: <epoch>:<micro-batch>:<seq>; lives with the pipeline
-- @key lease        hash   of the destination
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg epoch        int    0: live
-- @arg seq          int    the mark, -1: nothing was sent
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
redis.call('HSET', K.destination, 'begun', A.epoch .. ':' .. A.m .. ':' .. A.seq)
return {'ok'}
