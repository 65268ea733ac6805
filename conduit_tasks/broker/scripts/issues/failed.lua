-- failed: counts an attempt at a task that failed, with those before it that had the same cause; an issue not seen for
-- 30 days is forgotten.
--
-- `since` is the first of them after the task `by` has last succeeded: from then on the issue is open (again). An issue that was not
-- seen for 30 days is forgotten, and the oldest ones beyond 200.
--
-- @key failing  hash  issue -> <last>|<by>|JSON: said, first, last, since (microseconds), count, days (day -> count), attempt;
--                     `ok:<node>` -> when a task with issues last succeeded (microseconds), 0: never since
-- @arg issue    text  id of the issue
-- @arg attempt  text  names the attempt: repeated, it counts once
-- @arg said     json  {node, by, error_class, shape, error, log}
-- @grows
-- @returns ok COUNT

local DAY, KEPT, MOST = 86400000000, 30, 200
local now, was = now_us(), redis.call('HGET', K.failing, A.issue)
local of = was and cjson.decode(string.match(was, '^%d+|[^|]*|(.*)$')) or {first = text(now), count = 0, days = {}}
if of.attempt == A.attempt then return {'ok', text(of.count)} end
local said, today = cjson.decode(A.said), math.floor(now / DAY)
local ok = 'ok:' .. said.by
redis.call('HSETNX', K.failing, ok, '0')
if not was or number(redis.call('HGET', K.failing, ok)) > number(of.last) then of.since = text(now) end
of.said, of.attempt, of.last, of.count = said, A.attempt, text(now), of.count + 1
local days = {[text(today)] = (of.days[text(today)] or 0) + 1}
for day, n in pairs(of.days) do
  if tonumber(day) > today - 14 and tonumber(day) < today then days[day] = n end
end
of.days = days
redis.call('HSET', K.failing, A.issue, of.last .. '|' .. said.by .. '|' .. cjson.encode(of))
if was then return {'ok', text(of.count)} end

local every, last, by, order, nodes = redis.call('HGETALL', K.failing), {}, {}, {}, {}
for i = 1, #every, 2 do
  if string.sub(every[i], 1, 3) ~= 'ok:' then
    order[#order + 1] = every[i]
    last[every[i]], by[every[i]] = string.match(every[i + 1], '^(%d+)|([^|]*)|')
  end
end
table.sort(order, function(a, b) return number(last[a]) > number(last[b]) end)
for n, issue in ipairs(order) do
  if issue == A.issue or (n <= MOST and number(last[issue]) > now - KEPT * DAY) then
    nodes['ok:' .. by[issue]] = true
  else
    redis.call('HDEL', K.failing, issue)
  end
end
for i = 1, #every, 2 do
  if string.sub(every[i], 1, 3) == 'ok:' and not nodes[every[i]] then redis.call('HDEL', K.failing, every[i]) end
end
return {'ok', text(of.count)}
