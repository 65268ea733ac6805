-- adopt: from here on the pipeline runs under this version of its file; destinations that it lacks are noted as having
-- left.
--
-- @key version       hash   digest, topology (JSON, without secrets), destinations (JSON), since (microseconds), by; with
--                           the pipeline
-- @key left          hash   destination that has left the file -> since when (microseconds); until it comes back, is renamed
--                           or is forgotten
-- @arg digest        text   of the pipeline file
-- @arg topology      json   of the same
-- @arg destinations  json<1000  ids of its destinations
-- @arg by            text   the run, or who applied it
-- @returns ok 1 if the version is another than before, else 0

if redis.call('HGET', K.version, 'digest') == A.digest then return {'ok', 0} end
local now, is = text(now_us()), {}
for _, id in ipairs(cjson.decode(A.destinations)) do
  is[id] = true
  redis.call('HDEL', K.left, id)
end
for _, id in ipairs(cjson.decode(redis.call('HGET', K.version, 'destinations') or '[]')) do
  if not is[id] then redis.call('HSETNX', K.left, id, now) end
end
redis.call('HSET', K.version, 'digest', A.digest, 'topology', A.topology, 'destinations', A.destinations, 'since', now,
           'by', A.by)
return {'ok', 1}
