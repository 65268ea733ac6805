-- letters: writes dead letters, outcomes and parked keys of a `confirm`, `settle` or `dispatch` that has more of them
-- than it takes, in portions before it.
--
-- What comes after says the rest in one step. Where that does not come about, the same records are sent, or dispatched,
-- again, and the same said of them again.
--
-- @key lease    hash   of the destination, or of the redrive
-- @key dead     hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive  hash   see `claim`
-- @key parked   hash   hash of a key -> position (<m>-<seq>-<ord>) up to which it is settled
-- @arg token    int    of the lease
-- @arg epoch    int    that closes letters
-- @arg by       text   who does
-- @arg closed   json<1000  letter -> what became of it
-- @arg park     json<1000  hash of a key -> position of the record it is parked behind
-- @arg letters  text*2000  field and value of each new dead letter
-- @returns ok

local no = guard_done(K.lease, A.token)
if no then return no end
close_letters(K.dead, K.redrive, cjson.decode(A.closed), A.epoch, A.by)
new_letters(K.dead, A.letters)
for key, at in pairs(cjson.decode(A.park)) do redis.call('HSETNX', K.parked, key, at) end
return {'ok'}
