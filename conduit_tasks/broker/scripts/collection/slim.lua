-- slim: of micro-batches that are delivered and acked only that is kept which sending them again, and collecting them, takes.
--
-- @key pipeline  hash   slim: all up to here are
-- @key each      hash*1000  micro-batches, in order; created again, as a hash without long values takes a fraction
-- @arg to        int    number of the last of them
-- @returns ok

local names = {'state', 'opened_at', 'sealed_at', 'config', 'manifest', 'total', 'bytes', 'matched'}
for _, key in ipairs(K.each) do
  local kept = redis.call('HMGET', key, 'state', 'opened_at', 'sealed_at', 'config', 'manifest', 'total', 'bytes', 'matched')
  if kept[1] == 'sealed' then
    redis.call('DEL', key)
    redis.call('HSET', key, 'sources', '[]', 'nodes', '[]')
    for i, name in ipairs(names) do if kept[i] then redis.call('HSET', key, name, kept[i]) end end
  end
end
if number(redis.call('HGET', K.pipeline, 'slim')) < tonumber(A.to) then redis.call('HSET', K.pipeline, 'slim', A.to) end
return {'ok'}
