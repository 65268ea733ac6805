-- glance: reads how a pipeline is, for a list of many: what a page would else ask some twenty commands for. It changes
-- nothing.
--
-- @key pipeline  hash  status, error, error_at, sealed
-- @key series    hash  rolling series of the pipeline
-- @key dead      hash  dead letters before the fan-out
-- @key each      hash*4000  delivery and dead letters of each destination, then the leases of the nodes
-- @arg destinations int  how many
-- @returns ok STATUS ERROR ERROR_AT SEALED DEAD, per destination CURSOR STATUS CONFIRMED_AT DEAD OUTAGE, then of the series the bucket
-- of now, and the two stretches of wide buckets that hold the last hours

local p = redis.call('HMGET', K.pipeline, 'status', 'error', 'error_at', 'sealed')
local status, err, at = p[1] or 'running', p[2] or '', p[3] or ''
local count = tonumber(A.destinations)
if status == 'running' then
  local first
  for i = 2 * count + 1, #K.each do
    local l = redis.call('HMGET', K.each[i], 'failures', 'error', 'error_at', 'attempts')
    if (l[1] and l[2]) or number(l[4]) > 1 then status = 'recovering' end
    if l[1] and l[2] and (not first or number(l[3]) < first) then first, err, at = number(l[3]), l[2], l[3] end
  end
end
local out = {'ok', status, err, at, p[4] or '0', redis.call('HLEN', K.dead)}
for i = 1, count do
  local d = redis.call('HMGET', K.each[2 * i - 1], 'cursor', 'status', 'confirmed_at', 'outage')
  out[#out + 1] = d[1] or p[4] or '0'
  out[#out + 1] = d[2] or 'running'
  out[#out + 1] = d[3] or ''
  out[#out + 1] = redis.call('HLEN', K.each[2 * i])
  out[#out + 1] = d[4] or ''
end
local wide = WIDTHS[2]
local stretch = math.floor(now_us() / 1000000 / wide[1] / wide[2])
local function field(n) return '|' .. wide[1] .. '|' .. n % wide[3] end
for _, found in ipairs(redis.call('HMGET', K.series, '|now', field(stretch - 1), field(stretch))) do out[#out + 1] = found or '' end
return out
