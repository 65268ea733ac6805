-- merge: has one task finish a micro-batch that several have begun: what they confirmed becomes ranges of the micro-batch.
--
-- The ranges come in one or several calls. Until the last one it stays divided, and whoever goes on then begins again. Its
-- votes are counted in the whole from then on, where those that voted in a shard are skipped: no record votes twice. If all of it is
-- confirmed, the cursor moves here: nothing is left that one task could confirm. The division is remembered: the micro-batch is
-- not divided again, and the destination may have marks of those shards (ADR 48).
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges, divided, shard:<n> (see `divide`); group, and its micro-batches (see `together`);
--                          merged: `divided` as it was, of the last micro-batch that was merged
-- @key window       hash   m, next of shard 0, and voted (see `vote`); joining: `voted` so far, until the last call; kept:
--                          <m>:<next> of shard 0, if that has voted in a later one of the group, until that is merged
-- @key lease        hash   of the destination
-- @key micro_batch  hash   total, bytes
-- @key series       hash   rolling series of the destination (see `sample`)
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg ranges       text<4000  seqs that are confirmed: sorted, never touching; empty: none
-- @arg voted        text<4000  ordinals that have voted in shards: sorted, never touching; empty: none
-- @arg first        int    1: of the first call
-- @arg last         int    1: of the last call
-- @returns ok

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local d = redis.call('HMGET', K.destination, 'cursor', 'divided', 'group')
local m, _, shards = division(d[2])
if tonumber(A.m) <= number(d[1]) or (not m and tonumber(A.m) == number(d[1]) + 1) then return {'ok'} end
if m ~= tonumber(A.m) or m ~= number(d[1]) + 1 then
  return broken('Invariant 4: micro-batch', A.m, 'is not the divided one behind cursor', d[1] or '0')
end
local function joined(key, field, given)
  local have = A.first == '1' and '' or redis.call('HGET', key, field) or ''
  if given ~= '' then have = select(2, united(have, parse_ranges(given))) end
  if have == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, have) end
  return have
end
local ranges = joined(K.destination, 'ranges', A.ranges)
local voted = joined(K.window, 'joining', A.voted)
if A.last == '1' then
  undivided(K.destination, shards)
  redis.call('HSET', K.destination, 'merged', d[2])
  redis.call('HDEL', K.window, 'joining')
  local w = redis.call('HMGET', K.window, 'm', 'next', 'kept')
  if number(w[1]) > m then redis.call('HSET', K.window, 'kept', w[1] .. ':' .. (w[2] or '0')) end
  if number(string.match(w[3] or '', '^%d+')) == m then redis.call('HDEL', K.window, 'kept') end
  if voted ~= '' then
    redis.call('HSET', K.window, 'm', A.m, 'next', '0', 'voted', A.m .. ':' .. voted)
  elseif number(w[1]) >= m then
    redis.call('HDEL', K.window, 'm', 'next')
  end
  local mb = redis.call('HMGET', K.micro_batch, 'total', 'bytes')
  if ranges == range_text(0, number(mb[1]) - 1) then
    sample(K.series, '', {p = 0, b = number(mb[2])}, now_us() / 1000000)
    passed(K.destination, m, d[3])
    progressed(K.lease)
  end
end
return {'ok'}
