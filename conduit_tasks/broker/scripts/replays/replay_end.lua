-- replay_end: a destination has its share of a replay, and with it the history of the event times that this covers
-- (X3).
--
-- @key pipeline     hash  status
-- @key destination  hash  replayed: ranges of event times (microseconds) of which it has the history
-- @key lease        hash  of the destination
-- @key replay       hash  see `replay_begin`
-- @arg token        int   of the lease
-- @arg covered      text  range of event times this replay was for; empty: it was not for all that was missing in it
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
redis.call('HSET', K.replay, 'finished', '1')
if A.covered ~= '' then
  local have = redis.call('HGET', K.destination, 'replayed') or ''
  redis.call('HSET', K.destination, 'replayed', select(2, united(have, parse_ranges(A.covered))))
end
return {'ok'}
