-- lapse: a redelivery that nobody has gone on with for long is given up: what it holds may be collected.
--
-- @key redo   hash  epoch, run, at (microseconds: when it was begun or confirmed something last), micro-batch -> ranges
--                   still to redeliver; filling: see `reopen`
-- @key lease  hash  of the destination: while it is held, somebody may be at it
-- @arg after  int   microseconds
-- @returns ok | ok RUN MICRO_BATCHES (it is given up; how many were not delivered whole)

local r = redis.call('HMGET', K.redo, 'run', 'at')
if not r[1] then return {'ok'} end
local now = now_us()
-- One that an earlier version began counts from here on.
if not r[2] then
  redis.call('HSET', K.redo, 'at', text(now))
  return {'ok'}
end
-- A clock that went back makes it no younger than new.
if number(r[2]) > now then
  r[2] = text(now)
  redis.call('HSET', K.redo, 'at', r[2])
end
local l = redis.call('HMGET', K.lease, 'owner', 'until', 'ttl')
-- Held for longer than it can be: by a holder of before the clock went back, who lives only if it says so again.
if l[1] and l[1] ~= '' and number(l[2]) > now and number(l[2]) <= now + number(l[3]) then return {'ok'} end
if now - number(r[2]) < tonumber(A.after) then return {'ok'} end
local left = redis.call('HLEN', K.redo) - 3 - redis.call('HEXISTS', K.redo, 'filling')
redis.call('UNLINK', K.redo)
return {'ok', r[1], left}
