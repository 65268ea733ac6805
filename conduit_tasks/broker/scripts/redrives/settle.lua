-- settle: a destination's word on records that were sent again: the counterpart of `confirm` in a redrive (X2, X4).
--
-- A letter leaves the index here, in one step with the destination's own state; one that failed again comes back as
-- another, of this epoch. Positions are <m>-<seq>-<ord>.
--
-- @key pipeline     hash   status
-- @key destination  hash   state (JSON), words, resent, counters
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive      hash   see `claim`
-- @key parked       hash   hash of a key -> position up to which it is settled; until the key is unparked
-- @arg token        int    of the lease, and of the claim
-- @arg step         int    number of this call in the redrive, from 1: a repeat changes nothing
-- @arg state        text   JSON that replaces the destination's own state; empty: it stays
-- @arg counts       json   counter -> how much to add
-- @arg settled      json<2000  letter -> outcome
-- @arg through      json<1000  hash of a key -> position of the newest parked record that is settled
-- @arg park         json<1000  hash of a key -> position of the record it is parked behind
-- @arg letters      text*2000  field and value of each new dead letter; before them went those that are more (`letters`)
-- @returns ok STATUS | stopped (taken as well)

local no = guard_done(K.lease, A.token)
if no then return no end
local again, no = settled(K.redrive, K.dead, A.token, A.step, cjson.decode(A.settled))
if no then return no end
if again then return taken(K.pipeline, K.destination) end
new_letters(K.dead, A.letters)
for key, position in pairs(cjson.decode(A.park)) do redis.call('HSETNX', K.parked, key, position) end
for key, position in pairs(cjson.decode(A.through)) do redis.call('HSET', K.parked, key, position) end
count(K.destination, A.counts)
take(K.destination, A.state, true)
redis.call('HSET', K.destination, 'confirmed_at', text(now_us()))
progressed(K.lease)
return taken(K.pipeline, K.destination)
