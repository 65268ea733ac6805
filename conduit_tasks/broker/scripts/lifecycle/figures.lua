-- figures: reads what is monitored of a pipeline, but for what has a hash or a set of its own. It changes nothing.
--
-- @key pipeline hash  status, sealed, collected, held, held_from, last
-- @key dead     hash  dead letters before the fan-out
-- @key each     hash*5500  delivery, dead letters and parked keys of each destination, then the leases of the nodes
-- @arg destinations int  how many
-- @returns ok AT (microseconds) {STATUS SEALED COLLECTED HELD HELD_FROM LAST} DEAD, per destination {{CURSOR STATUS RANGES
-- DIVIDED GROUP BREAKER, and the counters as `deliveries.COUNTERS` names them} DEAD PARKED}, per lease ATTEMPTS, behind a - if
-- the last attempt failed

local count = tonumber(A.destinations)
local of = redis.call('HMGET', K.pipeline, 'status', 'sealed', 'collected', 'held', 'held_from', 'last')
local out = {'ok', text(now_us()), of, redis.call('HLEN', K.dead)}
for i = 1, count do
  local d = redis.call('HMGET', K.each[3 * i - 2], 'cursor', 'status', 'ranges', 'divided', 'group', 'breaker', 'matched',
                       'delivered', 'filtered', 'nacked', 'completed', 'parked', 'retried', 'redelivered', 'redriven')
  out[#out + 1] = {d, redis.call('HLEN', K.each[3 * i - 1]), redis.call('HLEN', K.each[3 * i])}
end
for i = 3 * count + 1, #K.each do
  local l = redis.call('HMGET', K.each[i], 'failures', 'error', 'attempts')
  out[#out + 1] = (l[1] and l[2] and '-' or '') .. (l[3] or '0')
end
return out
