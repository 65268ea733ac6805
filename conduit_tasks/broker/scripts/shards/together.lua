-- together: divides several micro-batches behind the cursor at once, each among the same lanes: a task delivers the shards of one
-- lane, the oldest first, beside the tasks of the other lanes (ADR 41).
--
-- Whoever asks first fixes it, as with `divide`; nothing is added to a group. The one behind the cursor has the fields that `divide`
-- gives it. Those behind that one have the same with their number in it, until the cursor comes to them (`advanced`).
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges, divided, shard:<n> (see `divide`); group: <first>-<last> of these micro-batches, until the cursor
--                          has passed them; divided:<m>, shard:<m>:<n> of those not behind the cursor. `divided` has
--                          :<first>:<used> behind it: so many shards from that one on have records (round the lanes); merged:
--                          see `merge`
-- @key window       hash   m, next, voted (see `vote`)
-- @key lease        hash   of the destination
-- @key series       hash   rolling series of the destination (see `sample`)
-- @key each         hash*16  the micro-batches: state, total, bytes
-- @arg m            int    number of the first of them, the one behind the cursor
-- @arg token        int    of the lease
-- @arg lanes        int    2 to 64
-- @arg shares       text*16  of each: <matched>:<first>:<used>
-- @returns ok 1 if it is divided, 0 if one is begun in another way

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local d = redis.call('HMGET', K.destination, 'cursor', 'ranges', 'divided', 'group', 'merged')
local cursor, m = number(d[1]), tonumber(A.m)
if #K.each ~= #A.shares or m ~= cursor + 1 then
  return broken('Invariant 4: micro-batch', A.m, 'is not the one behind cursor', text(cursor))
end
local divided, _, count = division(d[3])
if divided == m then return {'ok', 1} end
local w = redis.call('HMGET', K.window, 'm', 'next', 'voted')
local begun = w[1] == A.m and (number(w[2]) > 0 or string.match(w[3] or '', '^(%d+):') == A.m)
if begun or merged(d[5], A.m) or (d[2] and d[2] ~= '') or last_of(d[4]) > cursor then return {'ok', 0} end
for i, key in ipairs(K.each) do
  local matched, first, used = string.match(A.shares[i], '^(%d+):(%d+):(%d+)$')
  local mb = redis.call('HMGET', key, 'state', 'total', 'bytes')
  local fits = matched and tonumber(used) <= tonumber(A.lanes) and (tonumber(used) > 0) == (tonumber(matched) > 0)
  if mb[1] ~= 'sealed' or not fits or (i == 1 and used == '0') then
    return broken('Invariant 4: micro-batch', text(m + i - 1), 'is not sealed, or no shard has its records')
  end
end
undivided(K.destination, count)
local now = now_us()
for i, key in ipairs(K.each) do
  local at, left = m + i - 1, {}
  local before, name = places(cursor, at)
  -- What an earlier group may have left of a number that comes again, as Redis had forgotten it.
  for lane = 0, 63 do left[lane + 1] = before .. lane end
  redis.call('HDEL', K.destination, unpack(left))
  redis.call('HSET', K.destination, name, table.concat({text(at), 'none', A.lanes, A.shares[i]}, ':'))
  if string.match(A.shares[i], '^0:') then
    local mb = redis.call('HMGET', key, 'total', 'bytes')
    sample(K.series, '', {p = number(mb[1]), b = number(mb[2])}, now / 1000000)
  end
end
redis.call('HSET', K.destination, 'group', text(m) .. '-' .. text(m + #K.each - 1))
return {'ok', 1}
