-- mark: the dead-letter store knows what became of these letters, or their claims are given back: the redrive forgets
-- them, and ends if it is over.
--
-- @key lease    hash   of the destination
-- @key redrive  hash   see `claim`; removed with its last letter
-- @arg token    int    of the lease
-- @arg back     int    1: these are claims that are given back; 0: these are settled, and marked in the store
-- @arg letters  text*1000  a portion of them; in the other state they are left alone
-- @returns ok

local no = fenced(K.lease, A.token)
if no then return no end
renew(K.lease, A.token)
for _, letter in ipairs(A.letters) do
  if (redis.call('HGET', K.redrive, letter) == 'claimed') == (A.back == '1') then
    redis.call('HDEL', K.redrive, letter)
  end
end
-- Only `token`, `nonce`, `epoch`, `by` and `step` are left.
if A.back == '1' and redis.call('HLEN', K.redrive) == 5 then redis.call('DEL', K.redrive) end
return {'ok'}
