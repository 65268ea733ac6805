-- emptied: the sources had nothing past their planned positions when they were asked. A later answer replaces an earlier one.
--
-- @key pipeline  hash   drained_at (microseconds), drained_to: everything that was there then is in micro-batches up to it
-- @arg at        int    when they were asked, by the server's clock (microseconds)
-- @arg to        int    last micro-batch that was sealed then
-- @returns ok

if tonumber(A.at) > number(redis.call('HGET', K.pipeline, 'drained_at')) then
  redis.call('HSET', K.pipeline, 'drained_at', A.at, 'drained_to', A.to)
end
return {'ok'}
