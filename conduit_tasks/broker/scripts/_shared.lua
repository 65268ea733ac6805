-- Prepended to every script: time, numbers, the lease and status guard, range sets.
--
-- An answer is a list whose first element is its kind: "ok" (what follows is the script's own), "fenced"
-- (newest token, owner), "stopped" (status, first error, the destination's key if only it is), "held" (owner, until, wait) or "broken" (a sentence).

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Concatenating a double keeps 14 digits; a token in microseconds has 16.
local function text(n) return string.format('%.0f', n) end

local function number(s) return tonumber(s or '0') or 0 end

-- When something ends that was to last `ttl` at most: where the server's clock went back since, not later than from now on.
local function within(till, now, ttl)
  return math.min(number(till), now + number(ttl))
end

local function broken(...) return {'broken', table.concat({...}, ' ')} end

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

-- Invariant 4: only the newest token's holder goes on, or the newest attempt of its executors; expiry alone does not fence
-- where nobody took over.
local function fenced(lease, token)
  local held = redis.call('HMGET', lease, 'token', 'owner', 'attempt')
  if (held[1] ~= token and held[3] ~= token) or not held[2] or held[2] == '' then
    return {'fenced', held[1] or '', held[2] or ''}
  end
end

-- `token`: of who speaks; a driver's word keeps no attempt alive.
local function renew(lease, token)
  local l = redis.call('HMGET', lease, 'ttl', 'attempt')
  local lives = text(now_us() + number(l[1]))
  redis.call('HSET', lease, 'until', lives)
  if l[2] == token then redis.call('HSET', lease, 'attempt_until', lives) end
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

-- Invariant 9: the first error of a stop is kept. Returns 1 where the stored one is this one.
local function first_error(key, status, err)
  if redis.call('HSETNX', key, 'error', err) == 1 then
    redis.call('HSET', key, 'error_at', text(now_us()))
  end
  redis.call('HSET', key, 'status', status)
  return redis.call('HGET', key, 'error') == err and 1 or 0
end

-- Range sets: text "0-4,7-7" (inclusive, sorted, never touching) <-> list of {first, last}.
local function parse_ranges(s)
  local out = {}
  for a, b in string.gmatch(s or '', '(%d+)-(%d+)') do out[#out + 1] = {tonumber(a), tonumber(b)} end
  return out
end

local function format_ranges(r)
  local out = {}
  for i = 1, #r do out[i] = text(r[i][1]) .. '-' .. text(r[i][2]) end
  return table.concat(out, ',')
end

local function unite_ranges(a, b)
  local out, i, j = {}, 1, 1
  while i <= #a or j <= #b do
    local r
    if j > #b or (i <= #a and a[i][1] <= b[j][1]) then r = a[i]; i = i + 1 else r = b[j]; j = j + 1 end
    local last = out[#out]
    if last and r[1] <= last[2] + 1 then
      if r[2] > last[2] then last[2] = r[2] end
    else
      out[#out + 1] = {r[1], r[2]}
    end
  end
  return out
end

local function subtract_ranges(a, b)
  local out, j = {}, 1
  for i = 1, #a do
    local first, last = a[i][1], a[i][2]
    while b[j] and b[j][2] < first do j = j + 1 end
    local k = j
    while b[k] and b[k][1] <= last do
      if b[k][1] > first then out[#out + 1] = {first, b[k][1] - 1} end
      first = b[k][2] + 1
      k = k + 1
    end
    if first <= last then out[#out + 1] = {first, last} end
  end
  return out
end

-- "none", "all" or "some" of `a` lies in `b`.
local function overlap(a, b)
  local function count(ranges)
    local n = 0
    for _, r in ipairs(ranges) do n = n + r[2] - r[1] + 1 end
    return n
  end
  local rest = count(subtract_ranges(a, b))
  if rest == 0 then return 'all' end
  return rest == count(a) and 'none' or 'some'
end

-- A step of the redrive claimed under this token: letters with an outcome leave the index. Returns true where this step
-- was done before, or nil and the answer to return.
local function settled(redrive, dead, token, step, outcomes)
  local r = redis.call('HMGET', redrive, 'token', 'step', 'epoch', 'by')
  if r[1] ~= token then return nil, broken('Invariant 4: nothing is claimed under token', token) end
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
