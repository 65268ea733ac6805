-- claim: dead letters are taken for a redrive, in a new epoch; a letter is in one redrive at a time (X2).
--
-- Claims are worth what the lease is: those of a holder that is gone are dropped here. What it had settled stays until
-- `mark` hears that the store knows.
--
-- @key pipeline     hash   status
-- @key destination  hash   epoch: the last one begun
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive      hash   token, nonce, epoch, by, step; letter -> `claimed`, or <outcome>|<epoch>|<time>|<by> once
--                          settled; lives until the redrive ends
-- @arg token        int    of the lease
-- @arg nonce        text   names this call: repeated, it gets the same answer
-- @arg by           text   the operator
-- @arg letters      text*  what is asked for
-- @returns ok EPOCH LETTER… (those that are claimed: the others are dead letters no more)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local again = redis.call('HGET', K.redrive, 'nonce') == A.nonce
if not again then
  local all = redis.call('HGETALL', K.redrive)
  for i = 1, #all, 2 do
    if all[i + 1] == 'claimed' then redis.call('HDEL', K.redrive, all[i]) end
  end
  local epoch = text(redis.call('HINCRBY', K.destination, 'epoch', 1))
  redis.call('HSET', K.redrive, 'token', A.token, 'nonce', A.nonce, 'epoch', epoch, 'by', A.by, 'step', '0')
  for _, letter in ipairs(A.letters) do
    if redis.call('HEXISTS', K.dead, letter) == 1 then redis.call('HSET', K.redrive, letter, 'claimed') end
  end
end
local answer = {'ok', redis.call('HGET', K.redrive, 'epoch')}
for _, letter in ipairs(A.letters) do
  if redis.call('HGET', K.redrive, letter) == 'claimed' then answer[#answer + 1] = letter end
end
return answer
