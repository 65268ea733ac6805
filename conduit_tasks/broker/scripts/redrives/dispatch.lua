-- dispatch: makes letters from before the fan-out, whose records went through the processors again, letters of the
-- destinations that want them, in one step (X2).
--
-- In one step they leave the index, and become letters of the destinations that want them, from where they are sent as
-- any dead letter is: so each of them gets a record once. What failed again comes back as another letter of this epoch.
--
-- @key pipeline     hash   status
-- @key destination  hash   of what is before the fan-out: epoch
-- @key lease        hash   of the redrive
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class; before the fan-out
-- @key redrive      hash   see `claim`
-- @key targets      hash*1000  `dead` of each destination
-- @arg token        int    of the lease, and of the claim
-- @arg step         int    number of this call in the redrive, from 1: a repeat changes nothing
-- @arg settled      json<2000  letter -> outcome
-- @arg letters      text*6000  place in `targets` (0: before the fan-out), field and value of each new letter; before them went those that
--                       are more (`letters`)
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local again, no = settled(K.redrive, K.dead, A.token, A.step, cjson.decode(A.settled))
if no then return no end
if again then return {'ok'} end
for i = 1, #A.letters, 3 do
  local at = tonumber(A.letters[i])
  redis.call('HSETNX', at == 0 and K.dead or K.targets[at], A.letters[i + 1], A.letters[i + 2])
end
progressed(K.lease)
return {'ok'}
