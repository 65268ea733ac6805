-- renew: keeps a lease alive, and tells its holder if it is fenced or is to stop.
--
-- @key lease     hash   of the node
-- @key scopes    hash*2  the pipeline's state and the destination's delivery; none if stopping does not matter
-- @arg token     int    of the lease
-- @returns ok TTL OWNER ATTEMPTS | fenced | stopped

local no = fenced(K.lease, A.token) or (K.scopes[1] and halted(K.scopes[1], K.scopes[2]))
if no then return no end
renew(K.lease, A.token)
return {'ok', unpack(redis.call('HMGET', K.lease, 'ttl', 'owner', 'attempts'))}
