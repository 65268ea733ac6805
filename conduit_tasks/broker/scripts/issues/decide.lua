-- decide: keeps what somebody decided about an issue, or takes it back; the last word counts.
--
-- @key issues  hash  issue -> JSON: state, by, at (microseconds), until (seconds); each until it is taken back
-- @arg id      text  of the issue
-- @arg said    json  {state, by, until}; state `open`: the decision is taken back
-- @grows
-- @returns ok 1 | ok full (there are 10,000)

local said = cjson.decode(A.said)
if said.state == 'open' then
  redis.call('HDEL', K.issues, A.id)
  return {'ok', 1}
end
if redis.call('HLEN', K.issues) >= 10000 and redis.call('HEXISTS', K.issues, A.id) == 0 then return {'ok', 'full'} end
if said['until'] == cjson.null then said['until'] = nil end
said.at = text(now_us())
redis.call('HSET', K.issues, A.id, cjson.encode(said))
return {'ok', 1}
