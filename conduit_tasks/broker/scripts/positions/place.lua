-- place: a user moves the planned position of a source, while the pipeline stands still and nothing of it is in flight.
--
-- @key pipeline  hash   status, sealed, unsealed
-- @key ack       hash   m: acked up to this micro-batch; to: the end of an intent, absent if none
-- @key planned   hash   part -> token (JSON text)
-- @arg rest      text*3000  per part: its name, its token as the caller saw it, the new one; empty: none
-- @returns ok | running STATUS | busy SEALED ACKED | moved PART (it is not what the caller saw)

local p = redis.call('HMGET', K.pipeline, 'status', 'sealed', 'unsealed')
if p[1] ~= 'stopped' and p[1] ~= 'degraded' then return {'running', p[1] or ''} end
local a = redis.call('HMGET', K.ack, 'm', 'to')
if p[3] or a[2] or number(a[1]) < number(p[2]) then return {'busy', text(number(p[2])), text(number(a[1]))} end
for i = 1, #A.rest, 3 do
  local now = redis.call('HGET', K.planned, A.rest[i]) or ''
  if now ~= A.rest[i + 1] and now ~= A.rest[i + 2] then return {'moved', A.rest[i]} end
end
for i = 1, #A.rest, 3 do
  if A.rest[i + 2] == '' then
    redis.call('HDEL', K.planned, A.rest[i])
  else
    redis.call('HSET', K.planned, A.rest[i], A.rest[i + 2])
  end
end
return {'ok'}
