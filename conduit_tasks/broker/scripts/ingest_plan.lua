-- ingest_plan: what lies past a number, cut into slices, without reading it. Changes nothing.
--
-- @key stream         stream  ids <number>-<bytes up to and with it>
-- @key state          hash    last: the newest number
-- @arg after          int     the number planned last; -1: none
-- @arg records        int     at most so many; 0: no bound
-- @arg size           int     at most so many bytes, but one event; 0: no bound
-- @arg slice_records  int     at most so many in a slice
-- @arg slice_size     int     the same in bytes, but one event
-- @returns ok FIRST (LAST BYTES)...: number before the first event, then of each slice its last number and its bytes

local function bytes_at(n)
  local found = redis.call('XRANGE', K.stream, text(n), text(n), 'COUNT', 1)[1]
  return tonumber(string.match(found[1], '%-(%d+)$'))
end

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

local found = redis.call('XRANGE', K.stream, text(tonumber(A.after) + 1), '+', 'COUNT', 1)[1]
if not found then return {'ok'} end
local n, before = string.match(found[1], '^(%d+)%-(%d+)$')
local first, bytes = tonumber(n), tonumber(before) - #found[2][2]
local last = math.min(number(redis.call('HGET', K.state, 'last')), first + bound(A.records) - 1)
last = up_to(first, last, bytes + bound(A.size))
local out = {'ok', text(first - 1)}
while first <= last do
  local to = up_to(first, math.min(last, first + tonumber(A.slice_records) - 1), bytes + tonumber(A.slice_size))
  local reached = bytes_at(to)
  out[#out + 1], out[#out + 2] = text(to), text(reached - bytes)
  first, bytes = to + 1, reached
end
return out
