-- gone: parts of a source that are nowhere any more; what has been gone for long is forgotten: it would begin as a new one.
--
-- @key pipeline  hash   looked:<source>: when all were looked at last (microseconds)
-- @key gone      hash   part -> since when it is gone (microseconds)
-- @key planned   hash   part -> token (JSON)
-- @key acked     hash   the same
-- @key index     hash   partition -> next index; of a part that is a partition of its own
-- @arg source    text   id
-- @arg after     int    microseconds after which a part is forgotten
-- @arg back      int    how many of `rest` are parts that are there again
-- @arg rest      text*2000  these; then part and token, as planned, of each that is gone
-- @returns ok FORGOTTEN (how many)

local now, back, forgotten = now_us(), tonumber(A.back), 0
redis.call('HSET', K.pipeline, 'looked:' .. A.source, text(now))
for i = 1, back do redis.call('HDEL', K.gone, A.rest[i]) end
for i = back + 1, #A.rest, 2 do
  local part = A.rest[i]
  redis.call('HSETNX', K.gone, part, text(now))
  local since = number(redis.call('HGET', K.gone, part))
  -- A clock that went back makes it no younger than new.
  if since > now then redis.call('HSET', K.gone, part, text(now)) end
  -- What was planned again meanwhile is there again.
  if now - since >= tonumber(A.after) and redis.call('HGET', K.planned, part) == A.rest[i + 1] then
    for _, key in ipairs({K.planned, K.acked, K.index, K.gone}) do redis.call('HDEL', key, part) end
    forgotten = forgotten + 1
  end
end
return {'ok', forgotten}
