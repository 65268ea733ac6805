-- left_out: a source of a run could not be asked what is new, or could again.
--
-- @key under_way hash  run; left_out:<source> -> why it could not, empty once it could; until the next run
-- @key before    hash  the same of the run that the one under way takes over from
-- @arg run       text  the run's id; if another one has begun since, nothing is said
-- @arg source    text  the source's id
-- @arg why       text  empty: it could be asked
-- @returns ok

local place = K.under_way
if redis.call('HGET', place, 'run') ~= A.run then place = K.before end
if redis.call('HGET', place, 'run') ~= A.run then return {'ok'} end
local name = 'left_out:' .. A.source
if A.why ~= '' or redis.call('HEXISTS', place, name) == 1 then redis.call('HSET', place, name, A.why) end
return {'ok'}
