-- succeeded: notes that the task of a node that failed before went well: its issues are resolved by that.
--
-- @key failing  hash  see `failed`
-- @arg node     text  the node
-- @returns ok

local ok = 'ok:' .. A.node
if redis.call('HEXISTS', K.failing, ok) == 1 then redis.call('HSET', K.failing, ok, text(now_us())) end
return {'ok'}
