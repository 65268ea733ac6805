-- vote: outcomes enter a nack window in the order of the records; the nack above `threshold` among the last `size`
-- trips it and stops the pipeline, or the destination (C6).
--
-- The nack that would be one more trips the window: it is not entered, nor is anything behind it, and the first error is
-- stored here, in the same step.
--
-- @key pipeline  hash   status, error
-- @key lease     hash   of the destination, or of `seal`
-- @key window    hash   m, next: the first ordinal of micro-batch m that has not voted; outcomes: the last ones,
--                       run-length encoded; of a shard other than the first these have `:<shard>` behind them;
--                       voted: <m>:<ordinals> of micro-batch m that have voted in shards of it, and are skipped (see
--                       `merge`); kept: <m>:<next> of micro-batch m, in which the first shard has voted before one task went back
--                       to an older one (see `merge`);
--                       tripped: <m>-<ordinal>, of any; lives as long as the pipeline
-- @key scope     hash*1  the destination's delivery; none before the fan-out
-- @arg m         int    number of the micro-batch
-- @arg token     int    of the lease
-- @arg of        text   `:<shard>` where the window is that of a shard other than the first (ADR 27)
-- @arg first     int    ordinal of the first vote among the records that vote in m
-- @arg size      int    outcomes in the window; 0: no limit
-- @arg threshold int    nacks tolerated among them
-- @arg stop      text   `pipeline` or `destination`
-- @arg error     json   {node, error, error_class, micro_batch}
-- @arg votes     text<1000  a<count> and n<count>, comma separated
-- @returns ok -1, or how many of these votes were accepted before the one that tripped

local function say(status) return {'ok', status} end
local m, first, size, threshold = tonumber(A.m), tonumber(A.first), tonumber(A.size), tonumber(A.threshold)
local w = redis.call('HMGET', K.window, 'm' .. A.of, 'next' .. A.of, 'outcomes' .. A.of, 'tripped', 'voted', 'kept')
local at = first
local runs = {}
local again = false
for kind, count in string.gmatch(A.votes, '([an])(%d+)') do
  runs[#runs + 1] = {kind, tonumber(count)}
  local next_at = at + tonumber(count)
  if kind == 'n' and at <= number(w[2]) and number(w[2]) < next_at then again = true end
  at = next_at
end

local no = fenced(K.lease, A.token)
if no then return no end
-- Invariant 5: repeated, the call that tripped the window gets its answer again, although everything is stopped now.
if again and w[4] == A.m .. '-' .. text(number(w[2])) .. A.of then
  return say(number(w[2]) - first)
end
-- A destination's outcomes are voted on in any status, until its own window has tripped: they have happened. Those before
-- the fan-out belong to what a stop drops (C16).
local stopped = halted(K.pipeline, K.scope[1])
if stopped and (w[4] or not K.scope[1]) then return stopped end
renew(K.lease, A.token)

local voted_m, following = number(w[1]), number(w[2])
if m < voted_m then return say(-1) end
local kept_m, kept_next = string.match(A.of == '' and w[6] or '', '^(%d+):(%d+)$')
if m > voted_m then following = kept_m == A.m and tonumber(kept_next) or 0 end
if first > following then
  return broken('Invariant 10: votes of micro-batch', A.m, 'begin at', A.first, 'but', text(following), 'is next')
end

local window, length, nacks = {}, 0, 0
local head = 1
local function push(kind, count)
  local tail = window[#window]
  if tail and #window >= head and tail[1] == kind then tail[2] = tail[2] + count else window[#window + 1] = {kind, count} end
  length = length + count
  if kind == 'n' then nacks = nacks + count end
  while length > size do
    local out = math.min(length - size, window[head][2])
    window[head][2] = window[head][2] - out
    length = length - out
    if window[head][1] == 'n' then nacks = nacks - out end
    if window[head][2] == 0 then head = head + 1 end
  end
end
if size > 0 then
  for kind, count in string.gmatch(w[3] or '', '([an])(%d+)') do push(kind, tonumber(count)) end
end

-- How many of the ordinals from `a` to `b` have not voted in a shard; asked in order.
-- No more than the window holds are counted: the rest could only push these out.
local voted_of, ranges = string.match(w[5] or '', '^(%d+):(.*)$')
local voted, place = (A.of == '' and m == voted_m and voted_of == A.m) and ranges or '', 1
local function fresh(a, b)
  local n, from, to, behind = 0
  repeat
    place, from, to, behind = range_from(voted, a, place)
    if not from or from > b then return n + b - a + 1 end
    n = n + math.max(0, from - a)
    if n >= size then return n end
    a = to + 1
  until a > b
  return n
end

local tripped = -1
local ordinal = first
for _, run in ipairs(runs) do
  local kind, count = run[1], run[2]
  -- What voted before is skipped by the watermark: a retry never votes twice.
  local skip = math.max(0, math.min(count, following - ordinal))
  ordinal, count = ordinal + skip, count - skip
  if count > 0 then
    if size == 0 or kind == 'a' or threshold >= size then
      local new = size > 0 and fresh(ordinal, ordinal + count - 1) or 0
      if new > 0 then push(kind, new) end
      ordinal = ordinal + count
    else
      for _ = 1, count do
        if fresh(ordinal, ordinal) == 1 then
          local leaving = (length == size and window[head][1] == 'n') and 1 or 0
          if nacks - leaving + 1 > threshold then tripped = ordinal - first break end
          push('n', 1)
        end
        ordinal = ordinal + 1
      end
    end
    if tripped >= 0 then break end
  end
end

local out = {}
for i = head, #window do out[#out + 1] = window[i][1] .. text(window[i][2]) end
redis.call('HSET', K.window, 'm' .. A.of, A.m, 'next' .. A.of, text(math.max(ordinal, following)), 'outcomes' .. A.of,
           table.concat(out, ','))
if A.of == '' and m > voted_m then
  redis.call('HDEL', K.window, 'voted', 'joining')
  if number(kept_m) <= m then redis.call('HDEL', K.window, 'kept') end
end
if tripped >= 0 then
  redis.call('HSET', K.window, 'tripped', A.m .. '-' .. text(ordinal) .. A.of)
  -- What is stopped by now stays so, with its own first error.
  if stopped then return say(tripped) end
  if A.stop == 'destination' then
    first_error(K.scope[1], 'stopped', A.error)
  else
    first_error(K.pipeline, 'degraded', A.error)
  end
end
return say(tripped)
