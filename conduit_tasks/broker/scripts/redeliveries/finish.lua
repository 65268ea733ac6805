-- finish: notes that a run's task ended well after it delivered something: cleared later, it delivers that again. What
-- it delivered is done: a full Redis takes this, too.
--
-- @key runs  hash  run -> when its task ended well (milliseconds); the newest, each until it is in the spool
-- @arg run   text  the run's id; said again, it ended just now
-- @returns ok

redis.call('HSET', K.runs, A.run, text(math.floor(now_us() / 1000)))
return {'ok'}
