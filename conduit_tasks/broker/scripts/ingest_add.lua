-- ingest_add: stores one group of requests of a gateway source, each request whole or not at all (T2, C13).
--
-- An entry's id is <number>-<bytes up to and with it>: numbers are consecutive, so that a slice is two numbers, and what
-- lies between two entries is known without reading it. The first number is the server's time in microseconds, so that a
-- Redis that forgot everything does not give a number twice.
--
-- @key stream   stream  entries with one field, e: the event; each until its source's ack
-- @key state    hash    last, bytes: number and bytes of all ever stored; acked, acked_bytes: removed; pipeline's life
-- @key group    string  number and answer of the last group of this gateway process; expires
-- @arg group    int     number of this group; one that was answered already is answered the same again (invariant 5)
-- @arg ttl      int     seconds the answer is remembered
-- @arg records  int     what may be stored and not yet acked
-- @arg size     int     the same in bytes
-- @arg counts   json    events of each request
-- @arg events   blob*   of all requests, in order
-- @returns ok ANSWER: a character per request, 1 stored, 0 refused, the backlog is used up

local number_before, before = string.match(redis.call('GET', K.group) or '', '^(%d+) (.*)$')
if number_before == A.group then
  -- A write, so that a WAITAOF behind this call waits for the first one's too.
  redis.call('EXPIRE', K.group, A.ttl)
  return {'ok', before}
end
local s = redis.call('HMGET', K.state, 'last', 'bytes', 'acked', 'acked_bytes')
local last, bytes = tonumber(s[1] or now_us()), number(s[2])
local most = tonumber(s[3] or last) + tonumber(A.records)
local most_bytes = number(s[4]) + tonumber(A.size)
if not s[1] then redis.call('HSET', K.state, 'acked', text(last), 'acked_bytes', '0') end
local at, answer = 0, {}
for r, count in ipairs(cjson.decode(A.counts)) do
  local size = 0
  for i = at + 1, at + count do size = size + #A.events[i] end
  if last + count <= most and bytes + size <= most_bytes then
    for i = at + 1, at + count do
      last, bytes = last + 1, bytes + #A.events[i]
      redis.call('XADD', K.stream, text(last) .. '-' .. text(bytes), 'e', A.events[i])
    end
    answer[r] = '1'
  else
    answer[r] = '0'
  end
  at = at + count
end
redis.call('HSET', K.state, 'last', text(last), 'bytes', text(bytes))
local said = table.concat(answer)
redis.call('SET', K.group, A.group .. ' ' .. said, 'EX', A.ttl)
return {'ok', said}
