-- ingest_add: stores one group of chunks of a gateway source, each whole or not at all: within the backlog, in the
-- order of its pipe's lanes, no signed request twice (T2, C13).
--
-- A chunk is one or more requests' events in one entry; its id is <number of its last event>-<bytes up to and with it>.
-- Numbers are consecutive, so that a slice is two numbers, and what lies between two entries is known without reading it.
-- The first number is the server's time in microseconds, so that a Redis that forgot everything gives no number twice.
-- (One entry per event would be slow: Lua interns every argument by a hash over 32 of its characters, and events that
-- look alike fall into one bucket.)
--
-- @grows
-- @key stream   stream  entries with n: events in it, e: the events; each until its source's ack
-- @key sizes    stream  the same ids with n: events, b: bytes of each, for as long as they are in the stream
-- @key state    hash    base: number before the first event; last, bytes: number and bytes of all ever stored; acked,
--                       acked_bytes: removed; journal: what the gateway keeps beside it; pipeline's life
-- @key group    string  number and answer of the last group of this gateway process; expires
-- @key index    hash    lane -> state of its pipe's receiver; until it was silent for `forget`
-- @key lanes    zset    the same lanes by the second in which each was used last
-- @key seen     zset    marks of signed requests by the second in which each is forgotten; expires. With a ? before it: a mark
--                       whose events are not known to be in the journal yet
-- @arg group    int     number of this group; one that was answered already is answered the same again (invariant 5)
-- @arg ttl      int     seconds the answer is remembered
-- @arg records  int     events that may be stored and not yet acked
-- @arg size     int     the same in bytes
-- @arg journal  text    name of the journal that must be in the state (durability: spool); empty: there is none
-- @arg known    int     the highest number in it
-- @arg counts   json<2000  events of each chunk
-- @arg moves    json<2000  per chunk a list of (lane, state it must have, state it gets), of all together 2,000 lanes;
--                       a chunk may have no event
-- @arg most     int     lanes that may be known
-- @arg forget   int     seconds of silence after which one is forgotten
-- @arg marks    json<2000  per chunk a list of (mark, second in which it is forgotten), two for each of its requests
-- @arg remember int     marks that may be remembered
-- @arg keep     int     seconds after which the marks of a source that gets no more are gone
-- @arg replay   text    first character of a mark that says that the same request came before
-- @arg unsettled int    seconds for which marks are remembered with a ?, until ingest_settle; 0: for good at once
-- @arg chunks   blob*2000   the chunks, in order
-- @returns lost: the journal must be put back first | ok ANSWER LAST BYTES: a character per chunk, 1 stored, 0 refused,
--   the backlog is used up, 2 a lane is not where it must be, 3 it would be one lane too many, 4 a request came before, 5 its message did,
--   6 no further one may be remembered, 7 the same request, or its message, is not settled; number and bytes before the first of them

local number_before, before, last_before, bytes_before =
  string.match(redis.call('GET', K.group) or '', '^(%d+) (%d+) (%d+) (%d+)$')
if number_before == A.group then
  -- A write, so that a WAITAOF behind this call waits for the first one's too.
  redis.call('EXPIRE', K.group, A.ttl)
  return {'ok', before, last_before, bytes_before}
end
local s = redis.call('HMGET', K.state, 'last', 'bytes', 'acked', 'acked_bytes', 'journal')
if A.journal ~= '' and (s[5] ~= A.journal or number(s[1]) < tonumber(A.known)) then return {'lost'} end
local last, bytes = tonumber(s[1] or now_us()), number(s[2])
local from = {text(last), text(bytes)}
local most = tonumber(s[3] or last) + tonumber(A.records)
local most_bytes = number(s[4]) + tonumber(A.size)
if not s[1] then redis.call('HSET', K.state, 'base', text(last), 'acked', text(last), 'acked_bytes', '0') end
local moves = cjson.decode(A.moves)

local function moved(of)
  for _, m in ipairs(of) do
    if (redis.call('HGET', K.index, m[1]) or '') ~= m[2] then return true end
  end
end

local second = math.floor(now_us() / 1000000)
if #moves > 0 then
  -- A bounded portion at a time.
  local silent = redis.call('ZRANGEBYSCORE', K.lanes, '-inf', second - tonumber(A.forget), 'LIMIT', 0, 500)
  if #silent > 0 then
    redis.call('HDEL', K.index, unpack(silent))
    redis.call('ZREM', K.lanes, unpack(silent))
  end
end

local function crowded(of)
  local new = 0
  for _, m in ipairs(of) do if m[2] == '' then new = new + 1 end end
  return new > 0 and redis.call('HLEN', K.index) + new > tonumber(A.most)
end

local marks = cjson.decode(A.marks)
local asked = 0
for _, of in ipairs(marks) do asked = asked + #of end
if asked > 0 then
  -- A bounded portion at a time, more than comes.
  local gone = math.min(redis.call('ZCOUNT', K.seen, '-inf', second), 2 * asked + 500)
  if gone > 0 then redis.call('ZREMRANGEBYRANK', K.seen, 0, gone - 1) end
end

-- Two requests of one chunk may be the same, too.
local function came(of)
  local own = {}
  for _, m in ipairs(of) do
    if own[m[1]] or tonumber(redis.call('ZSCORE', K.seen, m[1]) or 0) > second then
      return string.sub(m[1], 1, 1) == A.replay and '4' or '5'
    end
    if tonumber(redis.call('ZSCORE', K.seen, '?' .. m[1]) or 0) > second then return '7' end
    own[m[1]] = true
  end
  if #of > 0 and redis.call('ZCARD', K.seen) + #of > tonumber(A.remember) then return '6' end
end

local answer = {}
for i, count in ipairs(cjson.decode(A.counts)) do
  local chunk = A.chunks[i]
  local before_this = came(marks[i] or {})
  if before_this then
    answer[i] = before_this
  elseif moves[i] and moved(moves[i]) then
    answer[i] = '2'
  elseif moves[i] and crowded(moves[i]) then
    answer[i] = '3'
  elseif count == 0 or (last + count <= most and bytes + #chunk <= most_bytes) then
    if count > 0 then
      last, bytes = last + count, bytes + #chunk
      take_in(K.stream, K.sizes, text(last) .. '-' .. text(bytes), count, chunk)
    end
    for _, m in ipairs(moves[i] or {}) do
      redis.call('HSET', K.index, m[1], m[3])
      redis.call('ZADD', K.lanes, second, m[1])
    end
    for _, m in ipairs(marks[i] or {}) do
      if A.unsettled == '0' then redis.call('ZADD', K.seen, m[2], m[1])
      else redis.call('ZADD', K.seen, second + tonumber(A.unsettled), '?' .. m[1]) end
    end
    answer[i] = '1'
  else
    answer[i] = '0'
  end
end
if asked > 0 then redis.call('EXPIRE', K.seen, A.keep) end
redis.call('HSET', K.state, 'last', text(last), 'bytes', text(bytes))
local said = table.concat(answer)
redis.call('SET', K.group, table.concat({A.group, said, from[1], from[2]}, ' '), 'EX', A.ttl)
return {'ok', said, from[1], from[2]}
