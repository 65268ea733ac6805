-- claim: dead letters are taken for a redrive, in a new epoch; a letter is in one redrive at a time (X2).
--
-- In portions under one nonce: the first begins the redrive. Claims are worth what the lease is: those of a holder that
-- is gone are given back (`mark`) before. What it had settled stays until `mark` hears that the store knows.
--
-- @key pipeline     hash   status
-- @key destination  hash   epoch: the last one begun
-- @key lease        hash   of the destination
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive      hash   token, nonce, epoch, by, step; letter -> `claimed`, or <outcome>|<epoch>|<time>|<by> once
--                          settled; lives until the redrive ends
-- @arg token        int    of the lease
-- @arg nonce        text   names this redrive: a portion that is repeated gets the same answer
-- @arg by           text   the operator
-- @arg letters      text*1000  what is asked for, a portion of it
-- @returns ok EPOCH LETTER… (those that are claimed: the others are dead letters no more)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
if redis.call('HGET', K.redrive, 'nonce') ~= A.nonce then
  local epoch = text(redis.call('HINCRBY', K.destination, 'epoch', 1))
  redis.call('HSET', K.redrive, 'token', A.token, 'nonce', A.nonce, 'epoch', epoch, 'by', A.by, 'step', '0')
end
local answer = {'ok', redis.call('HGET', K.redrive, 'epoch')}
for _, letter in ipairs(A.letters) do
  local was = redis.call('HGET', K.redrive, letter)
  if not was and redis.call('HEXISTS', K.dead, letter) == 1 then
    was = 'claimed'
    redis.call('HSET', K.redrive, letter, was)
  end
  if was == 'claimed' then answer[#answer + 1] = letter end
end
return answer
