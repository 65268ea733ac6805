-- rebuild: a pipeline's state, as its spool says it is, in one step (X7).
--
-- Leases are taken from whoever holds them; status, first error, dead letters and windows before the fan-out stay.
--
-- @key schema    string  version of the layout
-- @key pipeline  hash    last, sealed, collected, unsealed; rebuilt: the last call's nonce
-- @key each      any*    leases, then keys to remove, then hashes to write (removed before)
-- @arg nonce     text    names this call: repeated, it changes nothing
-- @arg replace   int     1: whatever state there is is replaced
-- @arg version   int     of the layout
-- @arg sealed    int     the highest number given
-- @arg collected int     all up to here are gone
-- @arg leases    int     how many of `each` are leases
-- @arg remove    int     how many after them are to be removed
-- @arg rest      text*   per hash: number of texts, then field and value each
-- @returns ok | busy LAST (there is state)

local p = redis.call('HMGET', K.pipeline, 'rebuilt', 'last')
if p[1] == A.nonce then return {'ok'} end
if A.replace ~= '1' and number(p[2]) > 0 then return {'busy', p[2]} end
local leases, remove = tonumber(A.leases), tonumber(A.remove)
for i = 1, leases do
  local token = number(redis.call('HGET', K.each[i], 'token')) + 1
  redis.call('HSET', K.each[i], 'token', text(math.max(token, now_us())), 'owner', '', 'until', '0')
  redis.call('HDEL', K.each[i], 'nonce')
  progressed(K.each[i])
end
for i = leases + 1, #K.each do redis.call('DEL', K.each[i]) end
local at = 1
for i = leases + remove + 1, #K.each do
  local last = at + tonumber(A.rest[at])
  while at < last do
    redis.call('HSET', K.each[i], A.rest[at + 1], A.rest[at + 2])
    at = at + 2
  end
  at = last + 1
end
redis.call('SET', K.schema, A.version)
redis.call('HSETNX', K.pipeline, 'status', 'running')
redis.call('HSET', K.pipeline, 'last', A.sealed, 'sealed', A.sealed, 'collected', A.collected, 'rebuilt', A.nonce)
redis.call('HDEL', K.pipeline, 'unsealed')
return {'ok'}
