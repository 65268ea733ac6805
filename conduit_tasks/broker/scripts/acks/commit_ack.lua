-- commit_ack: the source has been told; the acked position moves, once.
--
-- @key ack     hash  m, from, to
-- @key lease   hash  acks.<source>
-- @key intent  hash  part -> token of the intent
-- @key acked   hash  part -> token the source was told last; lives as long as the pipeline
-- @key figures hash  histograms of durations (see Keys)
-- @arg token   int   of the lease; 0: not asked
-- @arg from    int   of the intent
-- @arg to      int   of the intent
-- @arg observed json field of `figures` -> how much to add
-- @returns ok | fenced

if A.token ~= '0' then
  local no = fenced(K.lease, A.token)
  if no then return no end
  renew(K.lease, A.token)
end
local a = redis.call('HMGET', K.ack, 'm', 'from', 'to')
if number(a[1]) >= tonumber(A.to) then return {'ok'} end
if a[2] ~= A.from or a[3] ~= A.to then
  return broken('Invariant 2: an ack of micro-batches', A.from, 'to', A.to, 'was never begun')
end
local position = redis.call('HGETALL', K.intent)
for i = 1, #position, 2 do redis.call('HSET', K.acked, position[i], position[i + 1]) end
redis.call('DEL', K.intent)
redis.call('HDEL', K.ack, 'from', 'to')
redis.call('HSET', K.ack, 'm', A.to)
add(K.figures, A.observed)
if A.token ~= '0' then progressed(K.lease) end
return {'ok'}
