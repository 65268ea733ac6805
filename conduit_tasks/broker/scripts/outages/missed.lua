-- missed: a delivery ended because its destination did not answer; why is kept until it has delivered again.
--
-- @key lease        hash  of the destination
-- @key destination  hash  confirmed_at; outage: JSON of texts: error, owner, since, at (microseconds), confirmed: `confirmed_at` by then;
--                         it holds as long as that stands
-- @arg token        int   of the lease
-- @arg error        text  what it answered
-- @arg owner        text  who delivered
-- @returns ok | fenced

local no = guard_done(K.lease, A.token)
if no then return no end
local found = redis.call('HMGET', K.destination, 'outage', 'confirmed_at')
local confirmed, now = found[2] or '', text(now_us())
local before = found[1] and cjson.decode(found[1]) or {}
local since = before.confirmed == confirmed and before.since or now
local outage = {error = A.error, owner = A.owner, since = since, at = now, confirmed = confirmed}
redis.call('HSET', K.destination, 'outage', cjson.encode(outage))
return {'ok'}
