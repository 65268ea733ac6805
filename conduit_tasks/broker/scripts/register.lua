-- register: the sources and destinations of the pipeline file as it is now.
--
-- A new destination starts behind the last sealed micro-batch; one that comes back goes on at its cursor, or behind
-- what was collected while it was away. A new source has nothing to ack of what is sealed already.
--
-- @key pipeline      hash   sealed, collected: highest numbers
-- @key sources       set    ids of the registered sources; lives as long as the pipeline
-- @key destinations  set    ids of the registered destinations; the same
-- @key each          any*   delivery hash per destination, then ack hash per source, in the order of `ids`
-- @arg count         int    how many of `ids` are destinations
-- @arg ids           text*  destination ids, then source ids
-- @returns ok

local sealed, collected = number(redis.call('HGET', K.pipeline, 'sealed')), number(redis.call('HGET', K.pipeline, 'collected'))
local count = tonumber(A.count)
redis.call('DEL', K.sources, K.destinations)
for i, id in ipairs(A.ids) do
  if i <= count then
    redis.call('SADD', K.destinations, id)
    if redis.call('HSETNX', K.each[i], 'cursor', text(sealed)) == 1 then
      redis.call('HSET', K.each[i], 'status', 'running', 'epoch', '0')
    elseif number(redis.call('HGET', K.each[i], 'cursor')) < collected then
      redis.call('HSET', K.each[i], 'cursor', text(collected))
      redis.call('HDEL', K.each[i], 'ranges')
    end
  else
    redis.call('SADD', K.sources, id)
    redis.call('HSETNX', K.each[i], 'm', text(sealed))
    if number(redis.call('HGET', K.each[i], 'm')) < collected then
      redis.call('HSET', K.each[i], 'm', text(collected))
    end
  end
end
return {'ok'}
