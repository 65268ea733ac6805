-- start: the pipeline, or one destination of it, runs again: error, tripped windows and attempt counters are cleared.
--
-- @key scope     hash   the pipeline's state, or one destination's delivery
-- @key each      hash*4000  windows, then leases, then deliveries (pipeline only)
-- @arg windows   int    how many of `each` are nack windows
-- @arg leases    int    how many after them are leases
-- @returns ok

local windows, leases = tonumber(A.windows), tonumber(A.leases)
if redis.call('HGET', K.scope, 'status') ~= 'running' then
  redis.call('HDEL', K.scope, 'error', 'error_at', 'deadline', 'forced', 'resume')
  redis.call('HSET', K.scope, 'status', 'running')
  for i = 1, windows do
    -- The watermark stays: what has voted never votes again.
    if redis.call('HEXISTS', K.each[i], 'tripped') == 1 then
      redis.call('HDEL', K.each[i], 'tripped')
      -- Of each shard, too.
      for _, field in ipairs(redis.call('HKEYS', K.each[i])) do
        if string.find(field, '^outcomes') then redis.call('HDEL', K.each[i], field) end
      end
    end
  end
  for i = windows + 1, windows + leases do
    if redis.call('EXISTS', K.each[i]) == 1 then progressed(K.each[i]) end
  end
end
for i = windows + leases + 1, #K.each do
  if redis.call('HGET', K.each[i], 'status') == 'stopped' then
    redis.call('HSET', K.each[i], 'status', 'running')
    redis.call('HDEL', K.each[i], 'error', 'error_at', 'forced')
  end
end
return {'ok'}
