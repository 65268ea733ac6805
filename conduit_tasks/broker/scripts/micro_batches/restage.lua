-- restage: drops what was staged of the unsealed micro-batch and fences its nodes, so that it is asked for again from
-- its sources, without those that left the file (C16).
--
-- Slices and indexes stay the same (invariant 3), but for the ends of open slices, which reading finds again. Sources that have left the file leave the micro-batch, their planned
-- positions go back. Whoever held a lease of its nodes is fenced.
--
-- @key pipeline     hash   unsealed, sealed
-- @key micro_batch  hash   nodes, sources, stage:<node>, first:<node>
-- @key totals       hash   read, bytes
-- @key each         hash*8000  leases; then index counters, and then planned positions, per `gone` and `sources`; then
--                        delivery per destination, then ack state per source
-- @arg m            int    number of the micro-batch
-- @arg config       text   digest of the pipeline file that applies now
-- @arg sources      json<1001  sources that stay, in file order
-- @arg nodes        json<1001  nodes that must stage now
-- @arg manifest     text   where the manifest of an empty micro-batch is, for one that no source stays in
-- @arg gone         json<1001  sources that leave
-- @arg leases       int    how many of `each` are leases
-- @arg deliveries   int    how many of them are deliveries
-- @arg rest         text*20000  per `gone` and then `sources`: slices (JSON; empty: as they are), number of parts whose
--                          planned position goes back, then part and start token each
-- @returns ok

if redis.call('HGET', K.pipeline, 'unsealed') ~= A.m then return {'ok'} end
local leases = tonumber(A.leases)
for i = 1, leases do
  local l = redis.call('HMGET', K.each[i], 'token', 'owner')
  if l[2] and l[2] ~= '' then
    local token = number(l[1]) + 1
    redis.call('HSET', K.each[i], 'token', text(math.max(token, now_us())), 'owner', '', 'until', '0')
    redis.call('HDEL', K.each[i], 'nonce')
  end
end

local stay, gone, all = cjson.decode(A.sources), cjson.decode(A.gone), {}
for _, source in ipairs(gone) do all[#all + 1] = source end
for _, source in ipairs(stay) do all[#all + 1] = source end
for i, source in ipairs(all) do
  local first = redis.call('HGET', K.micro_batch, 'first:sources.' .. source)
  if first then
    local slices, n, seen = cjson.decode(redis.call('HGET', K.micro_batch, 'slices:' .. source)), 0, {}
    for index in string.gmatch(first, '%d+') do
      n = n + 1
      local partition = slices[n].partition
      if not seen[partition] then redis.call('HSET', K.each[leases + i], partition, index) end
      seen[partition] = true
    end
  end
end
for _, node in ipairs(cjson.decode(redis.call('HGET', K.micro_batch, 'nodes'))) do
  redis.call('HDEL', K.micro_batch, 'stage:' .. node, 'first:' .. node, 'won:' .. node)
end

local at, each = 1, leases + #all
for i = 1, #all do
  if i <= #gone then redis.call('HDEL', K.micro_batch, 'slices:' .. gone[i])
  elseif A.rest[at] ~= '' then redis.call('HSET', K.micro_batch, 'slices:' .. stay[i - #gone], A.rest[at]) end
  local parts = tonumber(A.rest[at + 1])
  at = at + 2
  for _ = 1, parts do
    redis.call('HSET', K.each[each + i], A.rest[at], A.rest[at + 1])
    at = at + 2
  end
end
redis.call('HSET', K.micro_batch, 'config', A.config, 'sources', A.sources, 'nodes', A.nodes)
if #stay == 0 then
  -- Nobody is left to stage it: it ends here, empty.
  redis.call('HSET', K.micro_batch, 'state', 'sealed', 'sealed_at', text(now_us()), 'manifest', A.manifest, 'total', '0',
             'bytes', '0', 'matched', '{}', 'upto', redis.call('HGET', K.totals, 'read') or '0',
             'upto_bytes', redis.call('HGET', K.totals, 'bytes') or '0')
  redis.call('HSET', K.pipeline, 'sealed', A.m)
  redis.call('HDEL', K.pipeline, 'unsealed')
  -- Whoever has all that is before it has this, too: there is nothing to confirm, and nothing to tell a source.
  local following = leases + 2 * #all
  for i = following + 1, #K.each do
    local name = i <= following + tonumber(A.deliveries) and 'cursor' or 'm'
    if number(redis.call('HGET', K.each[i], name)) == tonumber(A.m) - 1 then redis.call('HSET', K.each[i], name, A.m) end
  end
end
return {'ok'}
