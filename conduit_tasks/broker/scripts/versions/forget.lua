-- forget: the state of a destination that has left the file is removed; it cannot come back from then on.
--
-- @key destinations  set   ids of the registered destinations
-- @key left          hash  destination that has left the file -> since when
-- @key each          any*1000  the destination's keys
-- @arg id            text  of the destination
-- @returns ok 1 if it was forgotten, 0 if it is in the file

if redis.call('SISMEMBER', K.destinations, A.id) == 1 then return {'ok', 0} end
for _, key in ipairs(K.each) do redis.call('UNLINK', key) end
redis.call('HDEL', K.left, A.id)
return {'ok', 1}
