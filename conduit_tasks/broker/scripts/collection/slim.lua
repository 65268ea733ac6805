-- slim: removes from micro-batches that are delivered and acked all but what sending them again, and collecting them,
-- takes.
--
-- @key pipeline  hash   slim: all up to here are
-- @key each      hash*1000  micro-batches, in order; created again, as a hash without long values takes a fraction;
--                            came: source -> records that it read
-- @arg to        int    number of the last of them
-- @returns ok

local names = {'state', 'opened_at', 'sealed_at', 'config', 'manifest', 'total', 'bytes', 'matched', 'came'}
for _, key in ipairs(K.each) do
  local kept = redis.call('HMGET', key, unpack(names))
  if kept[1] == 'sealed' then
    local sources, came = cjson.decode(redis.call('HGET', key, 'sources') or '[]'), {}
    for _, source in ipairs(sources) do
      local stage = redis.call('HGET', key, 'stage:sources.' .. source)
      came[source] = stage and cjson.decode(stage).read
    end
    redis.call('DEL', key)
    redis.call('HSET', key, 'sources', '[]', 'nodes', '[]')
    for i, name in ipairs(names) do if kept[i] then redis.call('HSET', key, name, kept[i]) end end
    if #sources > 0 then redis.call('HSET', key, 'came', cjson.encode(came)) end
  end
end
if number(redis.call('HGET', K.pipeline, 'slim')) < tonumber(A.to) then redis.call('HSET', K.pipeline, 'slim', A.to) end
return {'ok'}
