-- not_ahead: corrects times that lie further ahead than they can, as the server's clock went back: they count from now
-- on.
--
-- @key each   hash*1000  hashes with times (microseconds since the epoch)
-- @arg names  text*2000  for each of them: field, and the field beside it that says how far ahead it lies at most
--                        (microseconds), empty: not at all. Where either is missing the time is left alone
-- @returns ok

local now = now_us()
for i, key in ipairs(K.each) do
  local name, bound = A.names[2 * i - 1], A.names[2 * i]
  local at = redis.call('HGET', key, name)
  local most = bound == '' and '0' or redis.call('HGET', key, bound)
  if at and most and within(at, now, most) < number(at) then
    redis.call('HSET', key, name, text(within(at, now, most)))
  end
end
return {'ok'}
