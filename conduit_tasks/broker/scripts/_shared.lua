-- Prepended to every script of the broker: the lease and status guard, the first error, counters and rolling series,
-- claims of tellings, entries of a gateway source, range sets, dead letters, renames.
--
-- An answer is a list whose first element is its kind: "ok" (what follows is the script's own), "fenced"
-- (newest token, owner), "stopped" (status, first error, the destination's key if only it is), "held" (owner, until, wait), "forgotten" or
-- "broken" (a sentence).

local function broken(...) return {'broken', table.concat({...}, ' ')} end

-- The answer if Redis knows a holder's lease, and not what that holder wrote under it.
local function unclaimed() return {'forgotten'} end

-- The answer for a pipeline or destination that was stopped forcefully, or nil.
local function halted(pipeline, destination)
  local p = redis.call('HMGET', pipeline, 'status', 'error', 'rebuilding')
  if p[3] then return {'stopped', 'rebuilding', ''} end
  if p[1] == 'stopped' or p[1] == 'degraded' then return {'stopped', p[1], p[2] or ''} end
  if destination then
    local d = redis.call('HMGET', destination, 'status', 'error')
    if d[1] == 'stopped' then return {'stopped', d[1], d[2] or '', destination} end
  end
end

-- Invariant 4: only the newest token's holder goes on, or the newest attempt of its executors (at a shard: the newest one at
-- that shard); expiry alone does not fence if nobody took over.
local function fenced(lease, token)
  local held = redis.call('HMGET', lease, 'token', 'owner', 'attempt', 'shard:' .. token)
  if (held[1] ~= token and held[3] ~= token and not held[4]) or not held[2] or held[2] == '' then
    return {'fenced', held[1] or '', held[2] or ''}
  end
end

-- `token`: of who speaks; a driver's word keeps no attempt alive.
local function renew(lease, token)
  local l = redis.call('HMGET', lease, 'ttl', 'attempt', 'shard:' .. token)
  local lives = text(now_us() + number(l[1]))
  redis.call('HSET', lease, 'until', lives)
  if l[2] == token then redis.call('HSET', lease, 'attempt_until', lives) end
  if l[3] then redis.call('HSET', lease, 'attempt_until:' .. l[3], lives) end
end

-- What every change under a lease begins with: nil (the lease is renewed), or the answer to return.
local function guard(pipeline, lease, token, destination)
  local no = fenced(lease, token) or halted(pipeline, destination)
  if no then return no end
  renew(lease, token)
end

-- The same for what has happened already: the newest holder's word on it is taken in any status, so that nothing is sent
-- again for a stop. The script answers with `taken`.
local function guard_done(lease, token)
  local no = fenced(lease, token)
  if no then return no end
  renew(lease, token)
end

-- The answer of a word that was taken: the caller of a stopped pipeline hears "stopped" all the same, and sends no more.
local function taken(pipeline, destination)
  return halted(pipeline, destination) or {'ok', redis.call('HGET', pipeline, 'status')}
end

local function progressed(lease)
  redis.call('HSET', lease, 'attempts', '0')
  redis.call('HDEL', lease, 'failures', 'error', 'error_at', 'retry_at')
end

-- Adds each number of a JSON object to the field of its name.
local function add(key, counts)
  local n, names, fields = cjson.decode(counts), {}, {}
  for name in pairs(n) do names[#names + 1] = name end
  if #names == 0 then return end
  local have = redis.call('HMGET', key, unpack(names))
  for i, name in ipairs(names) do
    fields[2 * i - 1], fields[2 * i] = name, text(number(have[i]) + n[name])
  end
  redis.call('HSET', key, unpack(fields))
end

local NOT_SENT = {matched = true, filtered = true, parked = true}

-- Adds a destination's counters, and notes when it was last sent to: its rate limit goes on from there.
local function count(destination, counts)
  add(destination, counts)
  for name, n in pairs(cjson.decode(counts)) do
    if n > 0 and not NOT_SENT[name] then return redis.call('HSET', destination, 'sent_at', text(now_us())) end
  end
end

-- Rolling series (broker/series.py reads them): seconds of a bucket, buckets of a stretch of time, stretches that are kept. A
-- field holds a stretch, `<stretch>;<bucket><letter><number>...;...`, and is taken for a later one again: so many and no more.
local WIDTHS = {{10, 60, 13}, {300, 48, 85}}

-- Writes a bucket that is over, behind those before it. `sums`: letter -> number, and `at`: the bucket.
local function fold(series, node, sums)
  local at, figures = sums.at * WIDTHS[1][1], {}
  for letter, n in pairs(sums) do
    if letter ~= 'at' then figures[#figures + 1] = letter .. text(n) end
  end
  for _, width in ipairs(WIDTHS) do
    local bucket = math.floor(at / width[1])
    local stretch = math.floor(bucket / width[2])
    local field = node .. '|' .. width[1] .. '|' .. stretch % width[3]
    local head, part = text(stretch) .. ';', text(bucket % width[2]) .. table.concat(figures)
    local have = redis.call('HGET', series, field) or ''
    if number(string.match(have, '^%d+')) < stretch then
      redis.call('HSET', series, field, head .. part)
    elseif string.sub(have, 1, #head) == head then
      local before, last = string.match(have, '^(.*;)([^;]*)$')
      local place = string.match(last, '^%d+')
      -- A clock that goes to and fro must not make it grow: then the figures go to the bucket that is there.
      if place == text(bucket % width[2]) or #have > 100 * width[2] then
        local all = {at = 0}
        for letter, n in string.gmatch(last, '(%a)(%d+)') do all[letter] = tonumber(n) end
        part = place
        for letter, n in pairs(sums) do all[letter] = (all[letter] or 0) + n end
        for letter, n in pairs(all) do
          if letter ~= 'at' then part = part .. letter .. text(n) end
        end
        redis.call('HSET', series, field, before .. part)
      else
        redis.call('HSET', series, field, have .. ';' .. part)
      end
    end
  end
end

-- Adds figures, letter -> number, to the rolling series of a node. `now`: seconds.
local function sample(series, node, figures, now)
  local at, field = math.floor(now / WIDTHS[1][1]), node .. '|now'
  local have = redis.call('HGET', series, field)
  local sums = have and cjson.decode(have)
  if sums and sums.at ~= at then
    fold(series, node, sums)
    sums = nil
  end
  sums = sums or {at = at}
  for letter, n in pairs(figures) do
    if n > 0 then sums[letter] = (sums[letter] or 0) + n end
  end
  redis.call('HSET', series, field, cjson.encode(sums))
end

-- Takes a destination's word, with its own state if that says one. `words` counts them: a mark in the spool that counts more
-- shows that Redis has forgotten some (X7). `resent` counts those on what was sent again by a redrive or a replay.
local function take(destination, state, resent)
  redis.call('HINCRBY', destination, 'words', 1)
  if resent then redis.call('HINCRBY', destination, 'resent', 1) end
  if state ~= '' then redis.call('HSET', destination, 'state', state) end
end

-- Invariant 9: the first error of a stop is kept. Returns 1 if the stored one is this one.
local function first_error(key, status, err)
  if redis.call('HSETNX', key, 'error', err) == 1 then
    redis.call('HSET', key, 'error_at', text(now_us()))
  end
  redis.call('HSET', key, 'status', status)
  return redis.call('HGET', key, 'error') == err and 1 or 0
end

-- Gives the telling of a subject to one caller, for `ttl` microseconds: 1, or 0 if another one has it.
local function claim(hash, subject, nonce, ttl)
  local of, till = string.match(redis.call('HGET', hash, 'claim:' .. subject) or '', '^(.*)|(%d+)$')
  local now = now_us()
  if of and of ~= nonce and number(till) > now and number(till) <= now + number(ttl) then return 0 end
  redis.call('HSET', hash, 'claim:' .. subject, nonce .. '|' .. text(now + number(ttl)))
  return 1
end

-- Ends such a claim. Returns whether it was this caller's.
local function settled_claim(hash, subject, nonce)
  local of = string.match(redis.call('HGET', hash, 'claim:' .. subject) or '', '^(.*)|%d+$')
  if of ~= nonce then return false end
  redis.call('HDEL', hash, 'claim:' .. subject)
  return true
end

-- One more entry of a gateway source, and beside it how much it is. Where the latter are ahead (the stream alone was put
-- back to an older one), they are of entries that are not there, and begin again.
local function take_in(stream, sizes, id, events, chunk)
  redis.call('XADD', stream, id, 'n', events, 'e', chunk)
  local noted = redis.pcall('XADD', sizes, id, 'n', events, 'b', #chunk)
  if type(noted) == 'table' and noted.err then
    redis.call('UNLINK', sizes)
    redis.call('XADD', sizes, id, 'n', events, 'b', #chunk)
  end
end

-- Range sets: text "0-4,7-7" (inclusive, sorted, never touching). One may be large and what a script says of it small, so
-- it is not taken apart: places in it are found by halving, and what lies between them is copied as it is.

local function parse_ranges(s)
  local out = {}
  for a, b in string.gmatch(s or '', '(%d+)-(%d+)') do out[#out + 1] = {tonumber(a), tonumber(b)} end
  return out
end

local function range_text(first, last) return text(first) .. '-' .. text(last) end

-- The first range that ends at `x` or later, from place `at` on, at which one begins: its place, first, last, and the place
-- behind it; if there is none, the place behind the last one.
local function range_from(s, x, at)
  local low, high, near = at, #s + 2, 3
  while true do
    -- Mostly it is one of the next; a place is halved while a range is surely within each half.
    if near > 0 or high - low <= 80 then
      local first, last, behind = string.match(s, '^(%d+)-(%d+)()', low)
      if not first then return low end
      last = tonumber(last)
      if last >= x then return low, tonumber(first), last, behind + 1 end
      low, near = behind + 1, near - 1
    else
      local place = string.find(s, ',', math.floor((low + high) / 2), true) + 1
      local last, behind = string.match(s, '^%d+-(%d+)()', place)
      if tonumber(last) < x then low = behind + 1 else high = place end
    end
  end
end

-- "none", "all" or "some" of the list `given` lies in `s`; and `s` with it.
local function united(s, given)
  local out, at, from, to = {}, 1, nil, nil
  local inside, outside = false, false
  for _, r in ipairs(given) do
    local a, b = r[1], r[2]
    local place, first, last, behind = range_from(s, a - 1, at)
    -- In the range of `s` that the one before it lies in, too: `given` never touches itself.
    local within = from and a <= to
    local reached = to
    if from and a <= to + 1 then
      a, b = from, math.max(b, to)
    else
      if from then out[#out + 1] = range_text(from, to) end
      if place > at then out[#out + 1] = string.sub(s, at, place - 2) end
      if first and first < a then a = first end
      at = place
    end
    if first and last < r[1] then at, first, last, behind = range_from(s, r[1], behind) end
    if within then inside, outside = true, outside or r[2] > reached
    elseif not first or first > r[2] then outside = true
    elseif first <= r[1] and last >= r[2] then inside = true
    else inside, outside = true, true end
    if first and last <= b then at, first, last, behind = range_from(s, b + 1, at) end
    if first and first <= b + 1 then b, at = last, behind end
    from, to = a, b
  end
  if from then out[#out + 1] = range_text(from, to) end
  if at <= #s then out[#out + 1] = string.sub(s, at) end
  return outside and (inside and 'some' or 'none') or 'all', table.concat(out, ',')
end

-- `s` without the list `given`.
local function subtract_ranges(s, given)
  local out, at, rest = {}, 1, nil
  for _, r in ipairs(given) do
    -- `rest`: what is left of a range that the one before was taken out of.
    if rest and rest[2] < r[1] then
      out[#out + 1] = range_text(rest[1], rest[2])
      rest = nil
    end
    if rest then
      if rest[1] < r[1] then out[#out + 1] = range_text(rest[1], r[1] - 1) end
      rest = rest[2] > r[2] and {r[2] + 1, rest[2]} or nil
    end
    if not rest then
      local place, first = range_from(s, r[1], at)
      if place > at then out[#out + 1] = string.sub(s, at, place - 2) end
      if first and first < r[1] then out[#out + 1] = range_text(first, r[1] - 1) end
      local last, behind
      at, first, last, behind = range_from(s, r[2] + 1, place)
      if first and first <= r[2] then rest, at = {r[2] + 1, last}, behind end
    end
  end
  if rest then out[#out + 1] = range_text(rest[1], rest[2]) end
  if at <= #s then out[#out + 1] = string.sub(s, at) end
  return table.concat(out, ',')
end

-- Why no destination `from` can go on as `to`: the answer to return, or nil.
local function not_renamed(pipeline, from, to)
  local status = redis.call('HGET', pipeline, 'status')
  if status ~= 'stopped' and status ~= 'degraded' then return {'runs', status or ''} end
  if redis.call('EXISTS', from) == 0 then return {'ok', 0} end
  for _, name in ipairs({'matched', 'delivered', 'redelivered', 'redriven', 'replayed'}) do
    local got = redis.call('HGET', to, name)
    if got and got ~= '0' and got ~= '' then return {'taken'} end
  end
end

-- Pairs: an old key, and what it becomes.
local function move_each(keys)
  for i = 1, #keys, 2 do
    if redis.call('EXISTS', keys[i]) == 1 then
      redis.call('UNLINK', keys[i + 1])
      redis.call('RENAME', keys[i], keys[i + 1])
    end
  end
end

-- Fields to several hashes: per hash the number of texts, then field and value each.
local function write_each(hashes, from, texts)
  local at = 1
  for i = from, #hashes do
    local last = at + tonumber(texts[at])
    while at < last do
      redis.call('HSET', hashes[i], texts[at + 1], texts[at + 2])
      at = at + 2
    end
    at = last + 1
  end
end

-- New dead letters: field and value each.
local function new_letters(dead, letters)
  for i = 1, #letters, 2 do redis.call('HSETNX', dead, letters[i], letters[i + 1]) end
end

-- Letters whose records were sent again after all: they leave the index, until the store is marked.
local function close_letters(dead, redrive, closed, epoch, by)
  local now = text(now_us())
  for letter, outcome in pairs(closed) do
    if redis.call('HDEL', dead, letter) == 1 then
      redis.call('HSET', redrive, letter, table.concat({outcome, epoch, now, by}, '|'))
    end
  end
end

-- A step of the redrive claimed under this token: letters with an outcome leave the index. Returns true if this step
-- was done before, or nil and the answer to return.
local function settled(redrive, dead, token, step, outcomes)
  local r = redis.call('HMGET', redrive, 'token', 'step', 'epoch', 'by')
  if r[1] ~= token then return nil, unclaimed() end
  if number(r[2]) >= tonumber(step) then return true end
  redis.call('HSET', redrive, 'step', step)
  local now = text(now_us())
  for letter, outcome in pairs(outcomes) do
    if redis.call('HGET', redrive, letter) ~= 'claimed' then
      return nil, broken('Invariant 10: the dead letter', letter, 'has an outcome but is not claimed')
    end
    redis.call('HDEL', dead, letter)
    redis.call('HSET', redrive, letter, table.concat({outcome, r[3], now, r[4]}, '|'))
  end
  return false
end
