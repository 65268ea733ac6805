-- release: gives a lease up, unless something was sealed since the holder last looked.
--
-- @key lease     hash  of the node
-- @key pipeline  hash  sealed
-- @arg token     int   of the lease
-- @arg expect    int   the last sealed micro-batch the holder knows of; -1: it does not matter
-- @arg failed    int   1: the holder failed, and the attempt counts as one without progress
-- @returns ok 1 if the lease is not held any more, 0 if the holder must go on

local l = redis.call('HMGET', K.lease, 'token', 'owner', 'attempts')
if l[1] ~= A.token or not l[2] or l[2] == '' then return {'ok', 1} end
if tonumber(A.expect) >= 0 and number(redis.call('HGET', K.pipeline, 'sealed')) > tonumber(A.expect) then
  renew(K.lease, A.token)
  return {'ok', 0}
end
local attempts = number(l[3])
if A.failed ~= '1' then attempts = math.max(attempts - 1, 0) end
redis.call('HSET', K.lease, 'owner', '', 'until', '0', 'attempts', text(attempts))
redis.call('HDEL', K.lease, 'nonce')
return {'ok', 1}
