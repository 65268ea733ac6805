-- ingest_ack: removes entries that the source was acked for whole (invariant 1); again, it changes nothing more.
--
-- A portion of them, in whole nodes of the streams and then within one: called until nothing is removed.
--
-- @key stream  stream  ids <number of its last event>-<bytes up to and with it>
-- @key sizes   stream  the same ids with n: events, b: bytes of each; entries of earlier versions are not in it
-- @key state   hash    acked: the number acked last; acked_bytes: of all that was removed
-- @arg to      int     the number acked up to
-- @returns ok ENTRIES that were removed from either

local least = text(tonumber(A.to) + 1)

-- Bytes up to and with the last entry to be removed; nil if there is none. An entry is read, which copies it, only
-- if the sizes do not say that it ends at `to`, or right before the entry that `to` lies in.
local function removed_bytes()
  local known = redis.call('XREVRANGE', K.sizes, A.to, '-', 'COUNT', 1)[1]
  local number_, bytes = string.match(known and known[1] or '', '^(%d+)%-(%d+)$')
  if number_ and number_ ~= A.to then
    local next_ = redis.call('XRANGE', K.sizes, least, '+', 'COUNT', 1)[1]
    local ends = next_ and tonumber(string.match(next_[1], '^%d+')) - next_[2][2]
    if ends ~= tonumber(number_) then bytes = nil end
  end
  if bytes then return bytes end
  local found = redis.call('XREVRANGE', K.stream, A.to, '-', 'COUNT', 1)[1]
  return found and string.match(found[1], '%-(%d+)$')
end

local function trimmed(key)
  local removed = redis.call('XTRIM', key, 'MINID', '~', least, 'LIMIT', 5000)
  return removed > 0 and removed or redis.call('XTRIM', key, 'MINID', '=', least)
end

if tonumber(A.to) > number(redis.call('HGET', K.state, 'acked')) then redis.call('HSET', K.state, 'acked', A.to) end
local bytes = removed_bytes()
if bytes then redis.call('HSET', K.state, 'acked_bytes', bytes) end
return {'ok', trimmed(K.stream) + trimmed(K.sizes)}
