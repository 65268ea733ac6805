-- attempt: an executor's attempt at the work of a lease's holder takes a token of its own (invariant 4).
--
-- The driver's token says which driver; several executors may be given the same task under it: one that is lost and comes
-- back, and its successor. One of them at a time is heard. A later one waits until the earlier has ended, or has said
-- nothing for as long as a lease lives; the earlier is fenced from then on. The shards of a divided micro-batch have an
-- attempt each, beside each other.
--
-- @key lease        hash   token, owner, ttl; attempt: token of the newest attempt, attempt_until: 0 once it has ended,
--                          attempt_nonce; the same of a shard, with `:<shard>` behind each; shard:<token> -> shard of its
--                          newest attempt; newest: token of the newest of these; gave_up: see `attempted`
-- @key pipeline     hash   status
-- @key destination  hash   status
-- @arg token        int    of the lease, as the driver acquired it
-- @arg shard        text   number of the shard; empty: all that the destination gets
-- @arg nonce        text   names this call: repeated, it is given the same token
-- @arg grace        int    microseconds to wait past the expiry of an attempt that did not end
-- @returns ok TOKEN TTL ATTEMPTS GAVE_UP | held OWNER UNTIL WAIT | fenced | stopped

local of = A.shard == '' and '' or ':' .. A.shard
local l = redis.call('HMGET', K.lease, 'token', 'owner', 'ttl', 'attempts', 'attempt' .. of, 'attempt_until' .. of,
                     'attempt_nonce' .. of, 'newest', 'attempt')
if l[1] ~= A.token or not l[2] or l[2] == '' then return {'fenced', l[1] or '', l[2] or ''} end
local no = halted(K.pipeline, K.destination)
if no then return no end
local gave_up = redis.call('HGET', K.lease, 'gave_up')
if gave_up then return {'ok', '0', l[3], l[4], gave_up} end
local now = now_us()
if l[7] ~= A.nonce then
  local till = within(l[6], now, l[3])
  if till < number(l[6]) then
    l[6] = text(till)
    redis.call('HSET', K.lease, 'attempt_until' .. of, l[6])
  end
  local free = till + number(A.grace)
  if till > 0 and free > now then return {'held', 'another attempt of ' .. l[2], l[6], text(free - now)} end
  local earlier = l[5]
  -- Newer than those at all shards and at no shard: one of a micro-batch before may still speak.
  l[5] = text(math.max(number(l[1]) + 1, number(l[5]) + 1, number(l[8]) + 1, number(l[9]) + 1, now))
  if of ~= '' then
    if earlier then redis.call('HDEL', K.lease, 'shard:' .. earlier) end
    redis.call('HSET', K.lease, 'shard:' .. l[5], A.shard, 'newest', l[5])
  end
end
local lives = text(now + number(l[3]))
redis.call('HSET', K.lease, 'attempt' .. of, l[5], 'attempt_until' .. of, lives, 'attempt_nonce' .. of, A.nonce,
           'until', lives)
return {'ok', l[5], l[3], l[4], ''}
