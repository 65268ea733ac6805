-- rebuild_begin: from here on the pipeline stands still until its state is rebuilt (X7): nothing is opened, confirmed or
-- collected. Where the one who rebuilds it dies, it stands still until the next one has done it.
--
-- Leases are taken from whoever holds them.
--
-- @key pipeline  hash   last; rebuilding: who does it
-- @key leases    hash*2000  a portion of them: called again for the next
-- @arg nonce     text   names this rebuilding
-- @arg replace   int    1: whatever state there is is replaced
-- @returns ok | busy LAST (there is state)

local p = redis.call('HMGET', K.pipeline, 'rebuilding', 'last')
if p[1] ~= A.nonce and A.replace ~= '1' and number(p[2]) > 0 then return {'busy', p[2]} end
redis.call('HSET', K.pipeline, 'rebuilding', A.nonce)
for _, lease in ipairs(K.leases) do
  local token = number(redis.call('HGET', lease, 'token')) + 1
  redis.call('HSET', lease, 'token', text(math.max(token, now_us())), 'owner', '', 'until', '0')
  redis.call('HDEL', lease, 'nonce')
  progressed(lease)
end
return {'ok'}
