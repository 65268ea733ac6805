-- seal: makes the micro-batch final: it stands for its sources from now on, counts in the sums, and its dead letters
-- from before the fan-out are indexed (C16, invariant 6).
--
-- @key pipeline     hash   status, unsealed; sealed: highest sealed number; held: bytes of what is sealed and not collected,
--                           from the micro-batch held_from on
-- @key micro_batch  hash   nodes, stage:<node>; gets manifest, total, bytes, matched; upto, upto_bytes: records and
--                           bytes of all that was ever sealed, with it
-- @key lease        hash   of `seal`
-- @key totals       hash   read, bytes, filtered, nacked over all that is sealed, and <node>/read ... of each node's stages, <node>/skipped
-- @key series       hash   rolling series of the pipeline, and of each node before the fan-out (see `sample`)
-- @key dead         hash   index of dead letters before the fan-out: <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg manifest     text   where the manifest is
-- @arg total        int    records in it, seq 0 .. total-1
-- @arg bytes        int    its size in the spool
-- @arg matched      json<1000  destination -> records its trigger matched
-- @arg filtered     int    records filtered before the fan-out
-- @arg nacked       int    records nacked before the fan-out
-- @arg letters      text*2000  field and value of each dead letter, but for those that are in the index already (`index`)
-- @returns ok 1 if this manifest is the one that counts, else 0

local no = guard(K.pipeline, K.lease, A.token)
if no then return no end
local mb = redis.call('HMGET', K.micro_batch, 'state', 'manifest', 'nodes')
if not mb[1] then return broken('micro-batch', A.m, 'does not exist') end
if mb[1] ~= 'open' then return {'ok', mb[2] == A.manifest and 1 or 0} end
local nodes = cjson.decode(mb[3])
for _, node in ipairs(nodes) do
  if redis.call('HEXISTS', K.micro_batch, 'stage:' .. node) == 0 then
    return broken('Invariant 3: micro-batch', A.m, 'cannot be sealed before', node, 'has staged')
  end
end
local now = now_us()
for _, node in ipairs(nodes) do
  local stage = cjson.decode(redis.call('HGET', K.micro_batch, 'stage:' .. node))
  for _, name in ipairs({'read', 'filtered', 'nacked'}) do
    redis.call('HINCRBY', K.totals, node .. '/' .. name, text(stage[name]))
  end
  if (stage.skipped or 0) > 0 then redis.call('HINCRBY', K.totals, node .. '/skipped', text(stage.skipped)) end
  sample(K.series, node, {r = stage.read, f = stage.filtered, x = stage.nacked}, now / 1000000)
end
sample(K.series, '', {r = number(A.total), f = number(A.filtered), x = number(A.nacked), b = number(A.bytes), m = 1}, now / 1000000)
local upto, upto_bytes = redis.call('HINCRBY', K.totals, 'read', A.total), redis.call('HINCRBY', K.totals, 'bytes', A.bytes)
redis.call('HINCRBY', K.totals, 'filtered', A.filtered)
redis.call('HINCRBY', K.totals, 'nacked', A.nacked)
new_letters(K.dead, A.letters)
redis.call('HSET', K.micro_batch, 'state', 'sealed', 'sealed_at', text(now), 'manifest', A.manifest,
           'total', A.total, 'bytes', A.bytes, 'matched', A.matched,
           'upto', text(upto), 'upto_bytes', text(upto_bytes))
redis.call('HDEL', K.micro_batch, 'indexing')
redis.call('HSET', K.pipeline, 'sealed', A.m)
redis.call('HSETNX', K.pipeline, 'held_from', A.m)
redis.call('HINCRBY', K.pipeline, 'held', A.bytes)
redis.call('HDEL', K.pipeline, 'unsealed')
progressed(K.lease)
return {'ok', 1}
