-- ingest_plan: what lies past a number, cut into slices, without handing it out. Changes nothing.
--
-- Bytes are known entry by entry: a slice that ends within one counts all of it, and the next slice nothing of it.
--
-- @key stream         stream  ids <number of its last event>-<bytes up to and with it>, n: events in it
-- @key state          hash    last: the newest number
-- @arg after          int     the number planned last; -1: none
-- @arg records        int     at most so many; 0: no bound
-- @arg size           int     at most so many bytes, but one event; 0: no bound
-- @arg slice_records  int     at most so many in a slice
-- @arg slice_size     int     the same in bytes, but one event
-- @returns ok HOLES BEFORE (LAST BYTES)...: 1 where numbers may lack an event; number before the first event, then of each slice its last number and its bytes

-- The entry that holds event n: last number, bytes up to and with it, events in it, its own bytes.
local function entry(n)
  local found = redis.call('XRANGE', K.stream, text(n), '+', 'COUNT', 1)[1]
  if not found then return nil end
  local last, bytes = string.match(found[1], '^(%d+)%-(%d+)$')
  return tonumber(last), tonumber(bytes), tonumber(found[2][2]), #found[2][4]
end

local function bytes_at(n) return (select(2, entry(n))) end

-- The last number from `first` to `last` whose bytes are at most `most`; at least `first`.
local function up_to(first, last, most)
  if most == math.huge or bytes_at(last) <= most then return last end
  while first < last do
    local middle = math.ceil((first + last) / 2)
    if bytes_at(middle) <= most then first = middle else last = middle - 1 end
  end
  return first
end

local function bound(s) local n = tonumber(s) return n == 0 and math.huge or n end

local of, bytes, count, own = entry(tonumber(A.after) + 1)
if not of then return {'ok'} end
local first = math.max(tonumber(A.after) + 1, of - count + 1)
bytes = bytes - own
local last = math.min(number(redis.call('HGET', K.state, 'last')), first + bound(A.records) - 1)
last = up_to(first, last, bytes + bound(A.size))
local out = {'ok', redis.call('HEXISTS', K.state, 'holes'), text(first - 1)}
while first <= last do
  local to = up_to(first, math.min(last, first + tonumber(A.slice_records) - 1), bytes + tonumber(A.slice_size))
  local reached = bytes_at(to)
  out[#out + 1], out[#out + 2] = text(to), text(reached - bytes)
  first, bytes = to + 1, reached
end
return out
