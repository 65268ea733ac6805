-- open: the next micro-batch; its slices are durable, and its sources' planned positions moved, before anything is read.
--
-- @grows
-- @key pipeline     hash   status; last: highest number given; unsealed: the open micro-batch, absent if none
-- @key micro_batch  hash   of number `expect`; lives until collected
-- @key planned      hash*1000  part -> token (JSON text), one per source, in the order of `sources`
-- @arg expect       int    last + 1, as the caller saw it
-- @arg config       text   digest of the pipeline file that planned it
-- @arg sources      json<1001  source ids in file order, those that have slices
-- @arg nodes        json<1001  nodes that must stage before it can be sealed
-- @arg rest         text*20000  per source: slices (JSON), number of parts, then part and token each
-- @returns ok NUMBER | taken NUMBER (somebody opened and sealed `expect` meanwhile) | stopped

local p = redis.call('HMGET', K.pipeline, 'status', 'last', 'unsealed', 'rebuilding')
if p[4] then return {'stopped', 'rebuilding', ''} end
if p[3] then return {'ok', p[3]} end
if p[1] ~= 'running' then return {'stopped', p[1] or '', redis.call('HGET', K.pipeline, 'error') or ''} end
-- Invariant 3: at most one is open, and only behind the last one.
if number(p[2]) + 1 ~= tonumber(A.expect) then return {'taken', p[2] or '0'} end

redis.call('HSET', K.micro_batch, 'state', 'open', 'opened_at', text(now_us()), 'config', A.config,
           'sources', A.sources, 'nodes', A.nodes)
local at = 1
for i, source in ipairs(cjson.decode(A.sources)) do
  redis.call('HSET', K.micro_batch, 'slices:' .. source, A.rest[at])
  local parts = tonumber(A.rest[at + 1])
  at = at + 2
  for _ = 1, parts do
    redis.call('HSET', K.planned[i], A.rest[at], A.rest[at + 1])
    at = at + 2
  end
end
redis.call('HSET', K.pipeline, 'last', A.expect, 'unsealed', A.expect)
return {'ok', A.expect}
