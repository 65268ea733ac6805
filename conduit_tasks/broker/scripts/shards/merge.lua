-- merge: has one task finish a micro-batch that several have begun: what they confirmed becomes ranges of the micro-batch.
--
-- The ranges come in one or several calls. Until the last one it stays divided, and whoever goes on then begins anew. It
-- votes anew, too: votes of a shard stand for other records than those of the whole.
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges, divided, shard:<n> (see `divide`)
-- @key window       hash   m, next of shard 0 (see `vote`)
-- @key lease        hash   of the destination
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg ranges       text<4000  seqs that are confirmed: sorted, never touching; empty: none
-- @arg first        int    1: of the first call
-- @arg last         int    1: of the last call
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local d = redis.call('HMGET', K.destination, 'cursor', 'ranges', 'divided')
local m, _, shards = division(d[3])
if not m and tonumber(A.m) == number(d[1]) + 1 then return {'ok'} end
if m ~= tonumber(A.m) or m ~= number(d[1]) + 1 then
  return broken('Invariant 4: micro-batch', A.m, 'is not the divided one behind cursor', d[1] or '0')
end
local have = A.first == '1' and '' or d[2] or ''
if A.ranges ~= '' then
  local _, all = united(have, parse_ranges(A.ranges))
  have = all
end
if have == '' then redis.call('HDEL', K.destination, 'ranges') else redis.call('HSET', K.destination, 'ranges', have) end
if A.last == '1' then
  undivided(K.destination, shards)
  if redis.call('HGET', K.window, 'm') == A.m then redis.call('HDEL', K.window, 'm', 'next') end
end
return {'ok'}
