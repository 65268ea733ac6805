-- whole: every record of a shard is confirmed. The cursor moves with the last shard of the micro-batch behind it, over those of the
-- group that are whole by then (see `together`).
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, divided, shard:<n> (see `divide`); group, and both of its micro-batches (see `together`)
-- @key lease        hash   of the destination
-- @key micro_batch  hash   total, bytes
-- @key figures      hash   histograms of durations (see Keys)
-- @key series       hash   rolling series of the destination (see `sample`)
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the attempt at this shard
-- @arg shard        int    number of the shard, from 0
-- @arg records      int    records of the shard
-- @arg completing   json   field of `figures` -> how much to add if the micro-batch is complete by this
-- @returns ok STATUS MOVED (1 if the cursor moved) | stopped (taken as well)

local no = guard_done(K.lease, A.token)
if no then return no end
local field, records = 'shard:' .. A.shard, tonumber(A.records)
local d = redis.call('HMGET', K.destination, 'cursor', 'divided', field, 'group')
local cursor, before, group = number(d[1]), 'shard:', d[4]
if tonumber(A.m) <= cursor then return taken(K.pipeline, K.destination) end
if tonumber(A.m) > cursor + 1 then
  local name
  before, name = places(cursor, tonumber(A.m))
  field = before .. A.shard
  d = redis.call('HMGET', K.destination, 'cursor', name, field)
end
local m, _, shards, matched, first, used = division(d[2])
if m ~= tonumber(A.m) or tonumber(A.shard) >= shards or (A.shard - first) % shards >= used then
  return broken('Invariant 4: micro-batch', A.m, 'is not divided into more than', A.shard, 'shards')
end
local have = d[3] or ''
if whole_of(have) then return taken(K.pipeline, K.destination) end
if have ~= (records > 0 and range_text(0, records - 1) or '') then
  return broken('Invariant 10: shard', A.shard, 'of micro-batch', A.m, 'has', A.records, 'records, but confirmed are:', have)
end
local sum, complete = records, true
for i = first, first + used - 1 do
  if i % shards ~= tonumber(A.shard) then
    local other = whole_of(redis.call('HGET', K.destination, before .. i % shards) or '')
    if other then sum = sum + other else complete = false end
  end
end
-- Invariant 10: shards are disjoint by the records' own columns, and together they are what was sealed.
if sum > matched or (complete and sum ~= matched) then
  return broken('Invariant 10: the shards of micro-batch', A.m, 'have', text(sum), 'records, but', text(matched), 'were sealed')
end
local now = now_us()
if complete then
  -- What the trigger does not want is confirmed with the last shard.
  local mb = redis.call('HMGET', K.micro_batch, 'total', 'bytes')
  sample(K.series, '', {p = number(mb[1]) - matched, b = number(mb[2])}, now / 1000000)
  add(K.figures, A.completing)
end
if complete and m == cursor + 1 then
  undivided(K.destination, shards)
  passed(K.destination, m, group)
else
  redis.call('HSET', K.destination, field, '=' .. A.records)
end
redis.call('HSET', K.destination, 'confirmed_at', text(now))
progressed(K.lease)
local said = taken(K.pipeline, K.destination)
if said[1] == 'ok' then said[3] = (complete and m == cursor + 1) and 1 or 0 end
return said
