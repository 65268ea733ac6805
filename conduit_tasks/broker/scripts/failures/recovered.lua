-- recovered: a node that does nothing else under a lease (`plan`) went well.
--
-- @key lease  hash  of the node
-- @returns ok

if redis.call('HEXISTS', K.lease, 'failures') == 1 then progressed(K.lease) end
return {'ok'}
