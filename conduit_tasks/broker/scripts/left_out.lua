-- left_out: a source of a run could not be asked what is new, or could again.
--
-- @key under_way hash  run; left_out:<source> -> why it could not, empty once it could; until the next run
-- @arg run       text  the run's id; where another one has begun since, nothing is said
-- @arg source    text  the source's id
-- @arg why       text  empty: it could be asked
-- @returns ok

if redis.call('HGET', K.under_way, 'run') ~= A.run then return {'ok'} end
local name = 'left_out:' .. A.source
if A.why ~= '' or redis.call('HEXISTS', K.under_way, name) == 1 then redis.call('HSET', K.under_way, name, A.why) end
return {'ok'}
