-- rename: all that is known of a destination goes on under another id, in one step; the keys of its runs, of which there
-- may be any number, went before (`renaming`). The pipeline stands still meanwhile.
--
-- @key pipeline      hash  status: stopped or degraded
-- @key version       hash  destinations (JSON)
-- @key destinations  set   ids of the registered destinations
-- @key left          hash  destination that has left the file -> since when
-- @key from          hash  delivery of the old id; if it is gone, this was done before
-- @key to            hash  delivery of the new id, which must not have got anything yet
-- @key lease         hash  of the old id: it is removed
-- @key each          any*100  pairs: an old key, and what it becomes
-- @arg old           text  id
-- @arg new           text  id
-- @arg last          int   the last micro-batch of which `matched` has said how much the new id has to get
-- @returns ok 1 if it was done, 0 if there was nothing to do | runs STATUS | taken

local no = not_renamed(K.pipeline, K.from, K.to)
if no then return no end
if number(redis.call('HGET', K.pipeline, 'last')) ~= tonumber(A.last) then return {'runs', 'started'} end
redis.call('UNLINK', K.to, K.lease)
redis.call('RENAME', K.from, K.to)
move_each(K.each)
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
