-- rename: all that is known of a destination goes on under another id, in one step. The pipeline stands still meanwhile.
--
-- @key pipeline      hash  status: stopped or degraded
-- @key version       hash  destinations (JSON)
-- @key destinations  set   ids of the registered destinations
-- @key left          hash  destination that has left the file -> since when
-- @key from          hash  delivery of the old id; where it is gone, this was done before
-- @key to            hash  delivery of the new id, which must not have got anything yet
-- @key each          any*4000  pairs: an old key, and what it becomes; then keys to remove
-- @arg old           text  id
-- @arg new           text  id
-- @arg pairs         int   how many pairs `each` begins with
-- @arg last          int   the last micro-batch of which `matched` has said how much the new id has to get
-- @returns ok 1 where it was done, 0 where there was nothing to do | runs STATUS | taken

local status = redis.call('HGET', K.pipeline, 'status')
if status ~= 'stopped' and status ~= 'degraded' then return {'runs', status or ''} end
if redis.call('EXISTS', K.from) == 0 then return {'ok', 0} end
if number(redis.call('HGET', K.pipeline, 'last')) ~= tonumber(A.last) then return {'runs', 'started'} end
for _, name in ipairs({'matched', 'delivered', 'redelivered', 'redriven', 'replayed'}) do
  local got = redis.call('HGET', K.to, name)
  if got and got ~= '0' and got ~= '' then return {'taken'} end
end
redis.call('UNLINK', K.to)
redis.call('RENAME', K.from, K.to)
local pairs_ = tonumber(A.pairs)
for i = 1, 2 * pairs_, 2 do
  if redis.call('EXISTS', K.each[i]) == 1 then
    redis.call('UNLINK', K.each[i + 1])
    redis.call('RENAME', K.each[i], K.each[i + 1])
  end
end
for i = 2 * pairs_ + 1, #K.each do redis.call('UNLINK', K.each[i]) end
local known = redis.call('HGET', K.version, 'destinations')
if known then
  local ids = {}
  for _, id in ipairs(cjson.decode(known)) do
    if id ~= A.old and id ~= A.new then ids[#ids + 1] = id end
  end
  ids[#ids + 1] = A.new
  redis.call('HSET', K.version, 'destinations', cjson.encode(ids))
end
redis.call('SREM', K.destinations, A.old)
redis.call('SADD', K.destinations, A.new)
redis.call('HDEL', K.left, A.old)
return {'ok', 1}
