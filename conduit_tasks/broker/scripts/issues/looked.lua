-- looked: notes a look at all issues, and forgets what was told of those that are gone: if they come back, that is new.
--
-- @key announced  hash       see `announce`
-- @arg mark       text       what the look saw of the dead letters; until that changes nobody need read them again
-- @arg gone       text*2000  fields of issues that are gone
-- @returns ok

for _, subject in ipairs(A.gone) do redis.call('HDEL', K.announced, subject, 'claim:' .. subject) end
redis.call('HSET', K.announced, 'mark', A.mark)
return {'ok'}
