-- at_work: a node's task says that it is at work in a run, for so long unless it says so again; or that it has ended.
--
-- @key under_way hash    run, again, ended (microseconds), node:<node> -> until (microseconds), 0 once it has ended, -1 if what is left waits; for:<node> -> how far ahead that lies at most; ready:<node> -> 1 once it can take over
-- @key before    hash    the same of the run that the one under way takes over from
-- @key bell      stream  one entry: the last change that somebody may wait for
-- @arg run       text    the run's id
-- @arg node      text    `sources.<id>`, `processors` or `destinations.<id>`; `acks`: of the first source
-- @arg for_us    int     microseconds; 0: it has ended; -1: it has, and what is left for it waits for something else
-- @arg again     text    why a run is to follow at once; empty: there is no need
-- @arg begins    int     1: it begins, and is not ready yet
-- @returns ok 1 | ok 2 (the acks had ended before) | ok 0 (another run has begun since, or none is known)

local place = K.under_way
if redis.call('HGET', place, 'run') ~= A.run then place = K.before end
if redis.call('HGET', place, 'run') ~= A.run then return {'ok', 0} end
local name = 'node:' .. A.node
local before = redis.call('HGET', place, name)
local lives = tonumber(A.for_us) > 0 and text(now_us() + tonumber(A.for_us)) or A.for_us
redis.call('HSET', place, name, lives, 'for:' .. A.node, A.for_us)
if A.again ~= '' then redis.call('HSET', place, 'again', A.again) end
local function ended(till) return tonumber(till) <= 0 end
if ended(lives) or A.begins == '1' then redis.call('HDEL', place, 'ready:' .. A.node) end
if ended(lives) then redis.call('HSET', place, 'ended', text(now_us())) end
if not before or ended(before) ~= ended(lives) then redis.call('XADD', K.bell, 'MAXLEN', 1, '*', 'what', A.node) end
return {'ok', redis.call('HEXISTS', place, 'node:acks') == 1 and 2 or 1}
