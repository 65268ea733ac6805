-- remember: what a run delivered, which only the spool knew, is known again, as it is about to be sent again.
--
-- @grows
-- @key runs       hash  see `finish`
-- @key run        hash  micro-batch -> ranges that the run confirmed; for `retention`
-- @arg id         text  the run's id
-- @arg retention  int   milliseconds
-- @arg rest       text*4000  micro-batch and ranges; each
-- @returns ok

for i = 1, #A.rest, 2 do redis.call('HSET', K.run, A.rest[i], A.rest[i + 1]) end
redis.call('PEXPIRE', K.run, A.retention)
redis.call('HSETNX', K.runs, A.id, text(math.floor(now_us() / 1000)))
return {'ok'}
