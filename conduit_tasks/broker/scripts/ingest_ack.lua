-- ingest_ack: removes entries that the source was acked for whole (invariant 1); again, it changes nothing more.
--
-- A portion of them, in whole nodes of the stream and then within one: called until nothing is removed.
--
-- @key stream  stream  ids <number of its last event>-<bytes up to and with it>
-- @key state   hash    acked: the number acked last; acked_bytes: of all that was removed
-- @arg to      int     the number acked up to
-- @returns ok ENTRIES that were removed

if tonumber(A.to) > number(redis.call('HGET', K.state, 'acked')) then redis.call('HSET', K.state, 'acked', A.to) end
local found = redis.call('XREVRANGE', K.stream, A.to, '-', 'COUNT', 1)[1]
if not found then return {'ok', 0} end
redis.call('HSET', K.state, 'acked_bytes', string.match(found[1], '%-(%d+)$'))
local least = text(tonumber(A.to) + 1)
local removed = redis.call('XTRIM', K.stream, 'MINID', '~', least, 'LIMIT', 5000)
if removed == 0 then removed = redis.call('XTRIM', K.stream, 'MINID', '=', least) end
return {'ok', removed}
