-- recovered: forgets the failures of a node that does nothing else under a lease (`plan`), as it went well.
--
-- @key lease  hash  of the node
-- @returns ok

if redis.call('HEXISTS', K.lease, 'failures') == 1 then progressed(K.lease) end
return {'ok'}
