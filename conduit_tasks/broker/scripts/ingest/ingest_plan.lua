-- ingest_plan: cuts what lies past a number into slices, without handing it out. Changes nothing.
--
-- Bytes are known entry by entry: a slice that ends within one counts all of it, and the next slice nothing of it.
-- What there is to plan is said by the sizes: to look at an entry itself copies all of its events. Those of earlier
-- versions have none, so they are looked at, each once, and a call that has looked at much ends early.
--
-- @key stream         stream  ids <number of its last event>-<bytes up to and with it>, n: events in it
-- @key sizes          stream  the same ids with n: events, b: bytes of each; entries of earlier versions are not in it
-- @key state          hash    last: the newest number; acked: the number acked last
-- @arg after          int     the number planned last; -1: none
-- @arg records        int     at most so many; 0: no bound
-- @arg size           int     at most so many bytes, but one event; 0: no bound
-- @arg slice_records  int     at most so many in a slice
-- @arg slice_size     int     the same in bytes, but one event
-- @returns ok HOLES BEFORE (LAST BYTES)...: 1 if numbers may lack an event; number before the first event, then of each slice its last number and its bytes; at most 500 slices

local SLICES, LOOKED_AT = 500, 16 * 1024 * 1024
local s = redis.call('HMGET', K.state, 'last', 'acked', 'holes')
local acked = number(s[2])

local function described(found, own)
  if not found then return nil end
  local last, bytes = string.match(found[1], '^(%d+)%-(%d+)$')
  last = tonumber(last)
  return {first = last - found[2][2] + 1, last = last, bytes = tonumber(bytes), own = tonumber(own(found[2][4]))}
end

-- Entries that were looked at, in order, and the bytes that this copied.
local seen, copied = {}, 0

local function looked_at(n)
  local low, high = 1, #seen + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if seen[middle].last < n then low = middle + 1 else high = middle end
  end
  if seen[low] and seen[low].first <= n then return seen[low] end
  local e = described(redis.call('XRANGE', K.stream, text(n), '+', 'COUNT', 1)[1], string.len)
  if e then
    copied = copied + e.own
    if not seen[low] or seen[low].last ~= e.last then table.insert(seen, low, e) end
  end
  return e
end

-- The entry that holds event n, or the next one that is not acked. The sizes are believed if they have just that one
-- and it is there still: an earlier version adds and removes entries without them.
local function entry(n)
  local e = described(redis.call('XRANGE', K.sizes, text(n), '+', 'COUNT', 1)[1], tonumber)
  if e and e.last > acked and e.first <= math.max(n, acked + 1) then return e end
  return looked_at(n)
end

-- The last number from `first` to `last` whose bytes are at most `most`, at least `first`; and its bytes.
local function up_to(first, last, most)
  local e = entry(last)
  if e.bytes <= most then return last, e.bytes end
  last = math.min(last, e.first) - 1
  while first < last do
    local middle = math.ceil((first + last) / 2)
    e = entry(middle)
    if e.bytes <= most then first = math.min(last, e.last) else last = math.min(middle, e.first) - 1 end
  end
  return first, entry(first).bytes
end

local function bound(given) local n = tonumber(given) return n == 0 and math.huge or n end

local e = entry(tonumber(A.after) + 1)
if not e then return {'ok'} end
local first, bytes = math.max(tonumber(A.after) + 1, e.first), e.bytes - e.own
local last = up_to(first, math.min(number(s[1]), first + bound(A.records) - 1), bytes + bound(A.size))
local out = {'ok', s[3] and 1 or 0, text(first - 1)}
while first <= last and #out < 3 + 2 * SLICES do
  local most = math.min(last, first + tonumber(A.slice_records) - 1)
  local to, reached = up_to(first, most, bytes + tonumber(A.slice_size))
  out[#out + 1], out[#out + 2] = text(to), text(reached - bytes)
  first, bytes = to + 1, reached
  if copied > LOOKED_AT then break end
end
return out
