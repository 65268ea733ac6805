-- confirm: a destination's word on ranges of one micro-batch: the cursor moves when it is complete, dead letters are
-- indexed, and the ranges are remembered for the run (not if `spool.retention` is 0).
--
-- Ranges not confirmed before count; ranges all confirmed before are a repeat and change nothing; a mixture breaks
-- invariant 5. In an epoch above 0 the ranges are those still to redeliver, and the cursor is not concerned.
-- It is taken in any status: what was delivered before a stop is not sent again after it.
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges (of micro-batch cursor + 1), group (see `together`), state (JSON), words, counters; lives with
--                          the pipeline
-- @key micro_batch  hash   state, total
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class; an entry lives until it is redriven
-- @key run          hash   micro-batch -> ranges this run confirmed, and its counters; expires after the retention
-- @key redo         hash   epoch, run, at, micro-batch -> ranges still to redeliver; removed when nothing is left
-- @key parked       hash   hash of a key -> position (<m>-<seq>-<ord>) up to which it is settled; until it is unparked
-- @key figures      hash   histograms of durations (see Keys)
-- @key series       hash   rolling series of the destination (see `sample`)
-- @key redrive      hash   letter -> <outcome>|<epoch>|<time>|<by>: of those closed here, until the store is marked
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg epoch        int    0: live
-- @arg ranges       text<4000  sorted, never touching
-- @arg state        text   JSON that replaces the destination's own state; empty: it stays
-- @arg remember     int    milliseconds the run's ranges are remembered; 0: not at all
-- @arg counts       json   counter -> how much to add
-- @arg observed     json   field of `figures` -> how much to add, for these ranges
-- @arg completing   json   the same, added where the micro-batch is complete by them
-- @arg sampled      json<40  letter of a figure -> how much to add to the series of now; what was confirmed is added here
-- @arg park         json<200  hash of a key -> position of the record it is parked behind (X4)
-- @arg closed       json<200  earlier letter -> what became of it, now that its record was redelivered (X2)
-- @arg by           text   the run that redelivers
-- @arg letters      text*400  field and value of each dead letter; before them went those that are more (`letters`)
-- @returns ok STATUS | stopped (taken as well)

local no = guard_done(K.lease, A.token)
if no then return no end
local m, given, have, all = tonumber(A.m), parse_ranges(A.ranges), nil, nil
local sampled = cjson.decode(A.sampled)

if A.epoch == '0' then
  local cursor = number(redis.call('HGET', K.destination, 'cursor'))
  if m <= cursor then return taken(K.pipeline, K.destination) end
  local mb = redis.call('HMGET', K.micro_batch, 'state', 'total', 'bytes')
  if m ~= cursor + 1 or mb[1] ~= 'sealed' then
    return broken('Invariant 4: micro-batch', A.m, 'is not the sealed one behind cursor', text(cursor))
  end
  local total = number(mb[2])
  if given[#given][2] >= total then return broken('Invariant 10:', A.ranges, 'lies outside of', mb[2], 'records') end
  have = redis.call('HGET', K.destination, 'ranges') or ''
  local repeated
  repeated, all = united(have, given)
  if repeated == 'all' then return taken(K.pipeline, K.destination) end
  if repeated == 'some' then return broken('Invariant 5:', A.ranges, 'is confirmed in part already') end
  sampled.p = 0
  for _, r in ipairs(given) do sampled.p = sampled.p + r[2] - r[1] + 1 end
  if all == range_text(0, total - 1) then
    sampled.b = number(mb[3])
    add(K.figures, A.completing)
    passed(K.destination, m, redis.call('HGET', K.destination, 'group'))
  else
    redis.call('HSET', K.destination, 'ranges', all)
  end
else
  if redis.call('HGET', K.redo, 'epoch') ~= A.epoch then return taken(K.pipeline, K.destination) end
  local open = redis.call('HGET', K.redo, A.m) or ''
  local pending = united(open, given)
  if pending == 'none' then return taken(K.pipeline, K.destination) end
  if pending == 'some' then return broken('Invariant 5:', A.ranges, 'is redelivered in part already') end
  local left = subtract_ranges(open, given)
  if left == '' then redis.call('HDEL', K.redo, A.m) else redis.call('HSET', K.redo, A.m, left) end
  redis.call('HSET', K.redo, 'at', text(now_us()))
  -- Only `epoch`, `run` and `at` are left: nothing remains to redeliver.
  if redis.call('HLEN', K.redo) == 3 then redis.call('DEL', K.redo) end
end

count(K.destination, A.counts)
local now = now_us()
sample(K.series, '', sampled, now / 1000000)
add(K.figures, A.observed)
take(K.destination, A.state)
close_letters(K.dead, K.redrive, cjson.decode(A.closed), A.epoch, A.by)
new_letters(K.dead, A.letters)
for key, at in pairs(cjson.decode(A.park)) do redis.call('HSETNX', K.parked, key, at) end
if A.remember ~= '0' then
  local mine = redis.call('HGET', K.run, A.m) or ''
  -- Mostly one run does all of it.
  if mine == have then mine = all else mine = select(2, united(mine, given)) end
  redis.call('HSET', K.run, A.m, mine)
  add(K.run, A.counts)
  redis.call('PEXPIRE', K.run, A.remember)
end
redis.call('HSET', K.destination, 'confirmed_at', text(now))
progressed(K.lease)
return taken(K.pipeline, K.destination)
