-- Prepended to every script: time and numbers.

local function now_us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Concatenating a double keeps 14 digits; a token in microseconds has 16.
local function text(n) return string.format('%.0f', n) end

local function number(s) return tonumber(s or '0') or 0 end

-- When something ends that was to last `ttl` at most: if the server's clock went back since, not later than from now on.
local function within(till, now, ttl)
  return math.min(number(till), now + number(ttl))
end

