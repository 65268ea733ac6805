-- mark: the dead-letter store knows what became of these letters: the redrive forgets them, and ends where it is over.
--
-- @key lease    hash   of the destination
-- @key redrive  hash   see `claim`; removed with its last letter
-- @arg token    int    of the lease
-- @arg over     int    1: what is still claimed is given back
-- @arg letters  text*  settled, and marked in the store
-- @returns ok

local no = fenced(K.lease, A.token)
if no then return no end
renew(K.lease)
for _, letter in ipairs(A.letters) do
  if redis.call('HGET', K.redrive, letter) ~= 'claimed' then redis.call('HDEL', K.redrive, letter) end
end
if A.over == '1' then
  local all = redis.call('HGETALL', K.redrive)
  for i = 1, #all, 2 do
    if all[i + 1] == 'claimed' then redis.call('HDEL', K.redrive, all[i]) end
  end
  -- Only `token`, `nonce`, `epoch`, `by` and `step` are left.
  if redis.call('HLEN', K.redrive) == 5 then redis.call('DEL', K.redrive) end
end
return {'ok'}
