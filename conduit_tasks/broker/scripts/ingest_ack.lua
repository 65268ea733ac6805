-- ingest_ack: removes what the source was acked for (invariant 1); what it was acked for before stays removed.
--
-- @key stream  stream  ids <number>-<bytes up to and with it>
-- @key state   hash    acked, acked_bytes: number and bytes of the newest that was removed
-- @arg to      int     the number acked up to
-- @returns ok EVENTS that were removed

local found = redis.call('XRANGE', K.stream, A.to, A.to, 'COUNT', 1)[1]
if not found then return {'ok', 0} end
redis.call('HSET', K.state, 'acked', A.to, 'acked_bytes', string.match(found[1], '%-(%d+)$'))
return {'ok', redis.call('XTRIM', K.stream, 'MINID', '=', text(tonumber(A.to) + 1))}
