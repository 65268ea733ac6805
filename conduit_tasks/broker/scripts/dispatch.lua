-- dispatch: records that failed before the fan-out have gone through the processors again (X2).
--
-- In one step they leave the index, and become letters of the destinations that want them, from where they are sent as
-- any dead letter is: so each of them gets a record once. What failed again comes back as another letter of this epoch.
--
-- @key pipeline     hash   status
-- @key destination  hash   of what is before the fan-out: epoch
-- @key lease        hash   of the redrive
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class; before the fan-out
-- @key redrive      hash   see `claim`
-- @key targets      hash*  `dead` of each destination
-- @arg token        int    of the lease, and of the claim
-- @arg step         int    number of this call in the redrive, from 1: a repeat changes nothing
-- @arg settled      json   letter -> outcome
-- @arg letters      text*  place in `targets` (0: before the fan-out), field and value of each new letter
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local r = redis.call('HMGET', K.redrive, 'token', 'step', 'epoch', 'by')
if r[1] ~= A.token then return broken('Invariant 4: nothing is claimed under token', A.token) end
if number(r[2]) >= tonumber(A.step) then return {'ok'} end
redis.call('HSET', K.redrive, 'step', A.step)
local now = text(now_us())
for letter, outcome in pairs(cjson.decode(A.settled)) do
  if redis.call('HGET', K.redrive, letter) ~= 'claimed' then
    return broken('Invariant 10: the dead letter', letter, 'has an outcome but is not claimed')
  end
  redis.call('HDEL', K.dead, letter)
  redis.call('HSET', K.redrive, letter, table.concat({outcome, r[3], now, r[4]}, '|'))
end
for i = 1, #A.letters, 3 do
  local at = tonumber(A.letters[i])
  redis.call('HSETNX', at == 0 and K.dead or K.targets[at], A.letters[i + 1], A.letters[i + 2])
end
progressed(K.lease)
return {'ok'}
