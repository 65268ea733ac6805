-- succeeded: the task of a node went well. That is noted if it failed before.
--
-- @key failing  hash  see `failed`
-- @arg node     text  the node
-- @returns ok

local ok = 'ok:' .. A.node
if redis.call('HEXISTS', K.failing, ok) == 1 then redis.call('HSET', K.failing, ok, text(now_us())) end
return {'ok'}
