-- begin_run: a run begins that found work: what is known of the one before goes, and whoever waits is woken. Where both
-- last, the one before goes on until this one is ready.
--
-- @key under_way hash    run, began and since (microseconds), records, base, moved, lasts; node:<node> -> until (microseconds), ready:<node> -> 1, see `at_work`; left_out:<source>, see `left_out`; until the next run
-- @key before    hash    the same of the run before, if this one takes over from it
-- @key bell      stream  one entry: the last change that somebody may wait for
-- @arg run       text    the run's id
-- @arg records   int     new records that it may read at most; -1: as many as there are
-- @arg base      int     records that the sources had read before it
-- @arg moved     int     how far everything was: last sealed number and cursors, added up
-- @arg lasts     int     1: it waits for more if nothing is left; 0: it ends
-- @returns ok

local found, now = redis.call('HMGET', K.under_way, 'run', 'lasts', 'began'), now_us()
-- Which of two runs began later is asked of `began`: it grows, also if the clock goes back.
local began = text(math.max(now, number(found[3]) + 1))
if found[1] and found[1] ~= A.run then
  redis.call('DEL', K.before)
  if found[2] == '1' and A.lasts == '1' then redis.call('RENAME', K.under_way, K.before) end
end
redis.call('DEL', K.under_way)
redis.call('HSET', K.under_way, 'run', A.run, 'began', began, 'since', text(now), 'records', A.records, 'base', A.base,
           'moved', A.moved, 'lasts', A.lasts)
redis.call('XADD', K.bell, 'MAXLEN', 1, '*', 'what', 'run')
return {'ok'}
