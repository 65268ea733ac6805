-- wind_up: who runs the nodes stops: the run under way opens nothing more, and its nodes end with what they are at.
--
-- @key under_way hash    run; over -> 1: it is to end; until the next run
-- @key before    hash    the same of the run that it takes over from
-- @key bell      stream  one entry: the last change that somebody may wait for
-- @returns ok RUN | ok (no run is known)

local run = redis.call('HGET', K.under_way, 'run')
if not run then return {'ok'} end
redis.call('HSET', K.under_way, 'over', '1')
if redis.call('HEXISTS', K.before, 'run') == 1 then redis.call('HSET', K.before, 'over', '1') end
redis.call('XADD', K.bell, 'MAXLEN', 1, '*', 'what', 'over')
return {'ok', run}
