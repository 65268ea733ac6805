-- trip: a delivery ended because sends failed; at the limit, or where its probe failed, the breaker opens (delivery.breaker).
--
-- Each opening in a row doubles the pause. Nothing is counted twice: `id` names the delivery that ended.
--
-- @key lease        hash  of the destination
-- @key destination  hash  breaker: JSON of texts: id, failures in a row, opened: openings in a row, tried: probes of the record in
--                         front that failed, since, until (microseconds), error; none where the last send went well
-- @arg token        int   of the lease
-- @arg id           text  of the delivery
-- @arg failures     int   sends that failed in a row at its end
-- @arg fresh        int   1: one went well before them
-- @arg probe        int   1: they are those of a probe
-- @arg tried        int   probes of the record in front that failed by now
-- @arg limit        int   failures in a row that open it
-- @arg pause        int   microseconds of the first pause
-- @arg most         int   the longest
-- @arg least        int   what the target asked for (Retry-After); 0: nothing
-- @arg error        text  the last failure
-- @returns ok | fenced

local no = guard_done(K.lease, A.token)
if no then return no end
local b = cjson.decode(redis.call('HGET', K.destination, 'breaker') or '{}')
if b.id == A.id then return {'ok'} end
if A.fresh == '1' then b = {} end
local now, opened = now_us(), number(b.opened)
b.id, b.error = A.id, A.error
b.failures = text(number(b.failures) + tonumber(A.failures))
if A.probe == '1' or tonumber(b.failures) >= tonumber(A.limit) then
  b.opened = text(opened + 1)
  b.tried = A.tried
  b.since = b.since or text(now)
  local pause = math.min(tonumber(A.most), tonumber(A.pause) * math.pow(2, math.min(opened, 40)))
  b['until'] = text(now + math.max(pause, tonumber(A.least)))
end
redis.call('HSET', K.destination, 'breaker', cjson.encode(b))
return {'ok'}
