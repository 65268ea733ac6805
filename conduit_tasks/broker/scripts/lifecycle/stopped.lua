-- stopped: ends a graceful stop once nothing is in flight (C3, C15).
--
-- Drained: nothing unsealed, every destination that is not stopped itself has confirmed all that is sealed, every
-- source is acked up to the lowest cursor.
--
-- @key pipeline  hash   status, sealed, unsealed
-- @key each      hash*1000  delivery per destination, then ack state per source
-- @arg count     int    how many of `each` are destinations
-- @returns ok 1 if the pipeline is stopped, else 0

local p = redis.call('HMGET', K.pipeline, 'status', 'sealed', 'unsealed')
if p[1] == 'stopped' then return {'ok', 1} end
if p[1] ~= 'stopping' or p[3] then return {'ok', 0} end
local lowest = number(p[2])
for i, key in ipairs(K.each) do
  if i <= tonumber(A.count) then
    local d = redis.call('HMGET', key, 'cursor', 'status')
    local cursor = number(d[1])
    if cursor < number(p[2]) and d[2] ~= 'stopped' then return {'ok', 0} end
    if cursor < lowest then lowest = cursor end
  elseif number(redis.call('HGET', key, 'm')) < lowest then
    return {'ok', 0}
  end
end
redis.call('HSET', K.pipeline, 'status', 'stopped')
redis.call('HDEL', K.pipeline, 'deadline')
return {'ok', 1}
