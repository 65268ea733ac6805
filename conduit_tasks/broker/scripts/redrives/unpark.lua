-- unpark: everything parked of a key was released: its records flow again (X4).
--
-- @key lease     hash  of the destination
-- @key parked    hash  hash of a key -> position up to which it is settled
-- @arg token     int   of the lease
-- @arg key       text  hash of the key
-- @arg position  text  as the caller read it
-- @returns ok 1 if the key is not parked any more, 0 if its position has moved

local no = fenced(K.lease, A.token)
if no then return no end
renew(K.lease, A.token)
local position = redis.call('HGET', K.parked, A.key)
if position and position ~= A.position then return {'ok', 0} end
redis.call('HDEL', K.parked, A.key)
return {'ok', 1}
