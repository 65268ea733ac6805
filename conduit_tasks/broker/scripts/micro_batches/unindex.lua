-- unindex: takes back a portion of the dead letters of an attempt to seal that did not come to its end.
--
-- @key micro_batch  hash   indexing: see `index`
-- @key dead         hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @arg token        int    the attempt; if it is another one by now, nothing is done
-- @arg over         int    1: these were the last
-- @arg letters      text*1000  their fields
-- @returns ok

if redis.call('HGET', K.micro_batch, 'indexing') ~= A.token then return {'ok'} end
for _, letter in ipairs(A.letters) do redis.call('HDEL', K.dead, letter) end
if A.over == '1' then redis.call('HDEL', K.micro_batch, 'indexing') end
return {'ok'}
