-- untrip: a send went well, so nothing is left of the failures before it (delivery.breaker).
--
-- @key lease        hash  of the destination
-- @key destination  hash  breaker: see `trip`
-- @arg token        int   of the lease
-- @returns ok | fenced

local no = guard_done(K.lease, A.token)
if no then return no end
redis.call('HDEL', K.destination, 'breaker')
return {'ok'}
