-- index: a portion of the dead letters of a micro-batch that is about to be sealed, if they are too many for `seal`.
--
-- Until it is sealed nobody takes them for letters. Those of an attempt that did not seal are taken back (`unindex`).
--
-- @key pipeline     hash   status
-- @key micro_batch  hash   state; indexing: token of the attempt whose letters are in the index
-- @key lease        hash   of `seal`
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @arg token        int    of the lease
-- @arg letters      text*2000  field and value of each dead letter
-- @returns ok 1, or 0 if it is sealed already, or another attempt's letters have to go first

local no = guard(K.pipeline, K.lease, A.token)
if no then return no end
local mb = redis.call('HMGET', K.micro_batch, 'state', 'indexing')
if mb[1] ~= 'open' or (mb[2] and mb[2] ~= A.token) then return {'ok', 0} end
redis.call('HSET', K.micro_batch, 'indexing', A.token)
new_letters(K.dead, A.letters)
return {'ok', 1}
