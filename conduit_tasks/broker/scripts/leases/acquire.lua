-- acquire: takes the lease of a node if it is free, with a token higher than any before, and counts one more attempt
-- without progress (invariant 4).
--
-- @key lease  hash  token, owner (empty: free), until (microseconds), ttl, nonce, attempts; of its executors: see `attempt`;
--                   never removed: tokens only grow
-- @arg owner  text  who asks, for messages
-- @arg nonce  text  names this call: repeated, it is given the same token
-- @arg ttl    int   microseconds it lives without renewal
-- @arg grace  int   microseconds to wait past the expiry of a holder that did not release
-- @returns ok TOKEN ATTEMPTS | held OWNER UNTIL WAIT

local now = now_us()
local l = redis.call('HMGET', K.lease, 'token', 'owner', 'until', 'nonce', 'attempts', 'ttl', 'attempt', 'newest')
if l[4] == A.nonce then
  redis.call('HSET', K.lease, 'until', text(now + tonumber(A.ttl)))
  return {'ok', l[1], l[5]}
end
local till = within(l[3], now, l[6])
if l[2] and l[2] ~= '' and till < number(l[3]) then
  l[3] = text(till)
  redis.call('HSET', K.lease, 'until', l[3])
end
local free = till + number(A.grace)
if l[2] and l[2] ~= '' and free > now then return {'held', l[2], l[3], text(free - now)} end
-- A Redis that forgot its last second must not issue a token twice: hence the clock.
local token = text(math.max(number(l[1]) + 1, number(l[7]) + 1, number(l[8]) + 1, now))
local attempts = text(number(l[5]) + 1)
redis.call('HSET', K.lease, 'token', token, 'owner', A.owner, 'until', text(now + tonumber(A.ttl)), 'ttl', A.ttl,
           'nonce', A.nonce, 'attempts', attempts)
redis.call('HDEL', K.lease, 'attempt', 'attempt_until', 'attempt_nonce', 'gave_up')
if l[8] then
  -- A micro-batch is divided into 64 shards at most (`divide`).
  for i = 0, 63 do
    local attempt = redis.call('HGET', K.lease, 'attempt:' .. i)
    if attempt then
      redis.call('HDEL', K.lease, 'attempt:' .. i, 'attempt_until:' .. i, 'attempt_nonce:' .. i, 'shard:' .. attempt)
    end
  end
  redis.call('HDEL', K.lease, 'newest')
end
return {'ok', token, attempts}
