-- complete: confirms, without any delivery, the micro-batch behind the cursor that the trigger matched nothing of.
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges; group (see `together`)
-- @key micro_batch  hash   state, matched, total, bytes
-- @key series       hash   rolling series of the destination (see `sample`)
-- @key lease        hash   of the destination
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg id           text   the destination
-- @returns ok 1 where the cursor moved

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local d = redis.call('HMGET', K.destination, 'cursor', 'group')
local m, cursor = tonumber(A.m), number(d[1])
if m <= cursor then return {'ok', 1} end
local mb = redis.call('HMGET', K.micro_batch, 'state', 'matched', 'total', 'bytes')
if m ~= cursor + 1 or mb[1] ~= 'sealed' then return {'ok', 0} end
local matched = cjson.decode(mb[2])[A.id]
if matched and matched ~= 0 then return {'ok', 0} end
local now = now_us()
redis.call('HSET', K.destination, 'confirmed_at', text(now))
sample(K.series, '', {p = number(mb[3]), b = number(mb[4])}, now / 1000000)
passed(K.destination, m, d[2])
progressed(K.lease)
return {'ok', 1}
