-- confirm_shard: a task's word on records of its shard of a divided micro-batch, by their numbers within the shard.
--
-- As in `confirm`: ranges not confirmed before count, ranges all confirmed before are a repeat, a mixture breaks
-- invariant 5; it is taken in any status. The cursor moves with `whole`.
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, divided, shard:<n> (see `divide`, `together`), words, counters
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class; an entry lives until it is redriven
-- @key run          hash   micro-batch -> ranges this run confirmed: here the whole one; and its counters; expires after the retention
-- @key figures      hash   histograms of durations (see Keys)
-- @key series       hash   rolling series of the destination (see `sample`)
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the attempt at this shard
-- @arg shard        int    number of the shard, from 0
-- @arg ranges       text<4000  numbers within the shard: sorted, never touching
-- @arg total        int    records of the whole micro-batch
-- @arg remember     int    milliseconds for which the run is remembered; 0: not at all
-- @arg counts       json   counter -> how much to add
-- @arg observed     json   field of `figures` -> how much to add, for these ranges
-- @arg sampled      json<40  letter of a figure -> how much to add to the series of now; what was confirmed is added here
-- @arg letters      text*400  field and value of each dead letter; before them went those that are more (`letters`)
-- @returns ok STATUS | stopped (taken as well)

local no = guard_done(K.lease, A.token)
if no then return no end
local field = 'shard:' .. A.shard
local d = redis.call('HMGET', K.destination, 'cursor', 'divided', field)
local cursor = number(d[1])
if tonumber(A.m) <= cursor then return taken(K.pipeline, K.destination) end
if tonumber(A.m) > cursor + 1 then
  local before, name = places(cursor, tonumber(A.m))
  field = before .. A.shard
  d = redis.call('HMGET', K.destination, 'cursor', name, field)
end
local m, _, shards, _, first, used = division(d[2])
if m ~= tonumber(A.m) or tonumber(A.shard) >= shards or (A.shard - first) % shards >= used then
  return broken('Invariant 4: micro-batch', A.m, 'is not divided into more than', A.shard, 'shards')
end
local have = d[3] or ''
if whole_of(have) then return taken(K.pipeline, K.destination) end
local given, sampled = parse_ranges(A.ranges), cjson.decode(A.sampled)
local repeated, all = united(have, given)
if repeated == 'all' then return taken(K.pipeline, K.destination) end
if repeated == 'some' then return broken('Invariant 5:', A.ranges, 'of shard', A.shard, 'is confirmed in part already') end
redis.call('HSET', K.destination, field, all)
count(K.destination, A.counts)
sampled.p = 0
for _, r in ipairs(given) do sampled.p = sampled.p + r[2] - r[1] + 1 end
local now = now_us()
sample(K.series, '', sampled, now / 1000000)
add(K.figures, A.observed)
take(K.destination, '')
new_letters(K.dead, A.letters)
if A.remember ~= '0' then
  redis.call('HSET', K.run, A.m, range_text(0, tonumber(A.total) - 1))
  add(K.run, A.counts)
  redis.call('PEXPIRE', K.run, A.remember)
end
redis.call('HSET', K.destination, 'confirmed_at', text(now))
progressed(K.lease)
return taken(K.pipeline, K.destination)
