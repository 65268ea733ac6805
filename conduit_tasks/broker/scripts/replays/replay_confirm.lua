-- replay_confirm: a destination's word on replayed records (X3). The live cursor and ranges are not concerned; the
-- destination's own state, which replay and live deliveries share, moves in this one step.
--
-- @key pipeline     hash   status
-- @key destination  hash   state (JSON), words, resent, counters
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive      hash   see `claim`: the letters of records that are replayed
-- @key replay       hash   see `replay_begin`
-- @arg token        int    of the lease, and of the claim
-- @arg portion      int    whose ranges these are
-- @arg ranges       text<4000  sorted, never touching; all of them done before: a repeat, which changes nothing
-- @arg state        text   JSON that replaces the destination's own state; empty: it stays
-- @arg counts       json   counter -> how much to add
-- @arg settled      json<1000  claimed letter -> outcome
-- @arg letters      text*2000  field and value of each new dead letter; before them went those that are more (`letters`)
-- @returns ok STATUS | stopped (taken as well)

local no = guard_done(K.lease, A.token)
if no then return no end
local r = redis.call('HMGET', K.redrive, 'token', 'epoch', 'by')
if r[1] ~= A.token then return unclaimed() end
local given, have = parse_ranges(A.ranges), redis.call('HGET', K.replay, A.portion) or ''
local repeated, all = united(have, given)
if repeated == 'all' then return taken(K.pipeline, K.destination) end
if repeated == 'some' then return broken('Invariant 5:', A.ranges, 'is replayed in part already') end
redis.call('HSET', K.replay, A.portion, all)
local now = text(now_us())
for letter, outcome in pairs(cjson.decode(A.settled)) do
  if redis.call('HGET', K.redrive, letter) == 'claimed' then
    redis.call('HDEL', K.dead, letter)
    redis.call('HSET', K.redrive, letter, table.concat({outcome, r[2], now, r[3]}, '|'))
  end
end
new_letters(K.dead, A.letters)
count(K.destination, A.counts)
redis.call('HSET', K.destination, 'confirmed_at', now)
take(K.destination, A.state, true)
progressed(K.lease)
return taken(K.pipeline, K.destination)
