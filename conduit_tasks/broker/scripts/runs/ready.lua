-- ready: a node of the run under way can do its work from now on: the same of the run before may end.
--
-- @key under_way hash    run; ready:<node> -> 1
-- @key bell      stream  one entry: the last change that somebody may wait for
-- @arg run       text    the run's id; if another one has begun since, nothing is said
-- @arg node      text    `sources.<id>`, `processors` or `destinations.<id>`
-- @returns ok

if redis.call('HGET', K.under_way, 'run') ~= A.run then return {'ok'} end
redis.call('HSET', K.under_way, 'ready:' .. A.node, '1')
redis.call('XADD', K.bell, 'MAXLEN', 1, '*', 'what', A.node)
return {'ok'}
