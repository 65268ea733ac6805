-- ingest_restore: puts chunks of a gateway's journal back into a Redis that lost them, under the ids they had (X7).
--
-- What is there is left alone. A chunk from before the state began again without its journal goes to the end, under a
-- number of its own: its order is lost, and it may be there twice.
--
-- @grows
-- @key stream   stream  ids <number of its last event>-<bytes up to and with it>, n: events in it, e: the events
-- @key sizes    stream  the same ids with n: events, b: bytes of each
-- @key state    hash    holes: there are numbers without an event; base: number before the first event; last, bytes, acked, acked_bytes; journal: see ingest_add
-- @arg journal  text    the journal's name, given with the last call; empty before
-- @arg ids      json<1000  ids of the chunks, ascending
-- @arg counts   json<1000  their numbers of events
-- @arg chunks   blob*1000   the chunks
-- @returns ok CHUNKS that were put back

local ids, counts = cjson.decode(A.ids), cjson.decode(A.counts)
local s = redis.call('HMGET', K.state, 'last', 'bytes', 'base')
local last, bytes, base = tonumber(s[1] or '-1'), number(s[2]), number(s[3])
local back = 0
for i, id in ipairs(ids) do
  local n, b = string.match(id, '^(%d+)%-(%d+)$')
  n, b = tonumber(n), tonumber(b)
  if last < 0 then
    base, bytes = n - counts[i], b - #A.chunks[i]
    redis.call('HSET', K.state, 'base', text(base), 'acked', text(base), 'acked_bytes', text(bytes))
  end
  if n <= base then n, b = last + counts[i], bytes + #A.chunks[i] end
  if last >= 0 and n - counts[i] > last then
    -- A chunk that was stored and never answered is missing: an entry without events keeps the numbers without a gap.
    local size = b - #A.chunks[i]
    take_in(K.stream, K.sizes, text(n - counts[i]) .. '-' .. text(size), text(n - counts[i] - last), '')
    redis.call('HSET', K.state, 'holes', '1')
    last = n - counts[i]
  end
  if n > last then
    take_in(K.stream, K.sizes, text(n) .. '-' .. text(b), counts[i], A.chunks[i])
    last, bytes, back = n, b, back + 1
  end
end
if last >= 0 then redis.call('HSET', K.state, 'last', text(last), 'bytes', text(bytes)) end
if A.journal ~= '' then redis.call('HSET', K.state, 'journal', A.journal) end
return {'ok', back}
