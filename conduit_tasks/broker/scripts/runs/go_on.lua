-- go_on: the limit of the run under way counts from now on, because nothing has come yet: no other run takes over from it.
--
-- @key under_way hash    run, over; counted -> since when its limit counts (microseconds)
-- @arg run       text    the run's id
-- @returns ok 1 | ok 0 (another run has begun since, or it is to end)

local found = redis.call('HMGET', K.under_way, 'run', 'over')
if found[1] ~= A.run or found[2] == '1' then return {'ok', 0} end
redis.call('HSET', K.under_way, 'counted', text(now_us()))
return {'ok', 1}
