-- divide: fixes into how many shards the records of one micro-batch are divided at a destination; a task delivers each.
--
-- Whoever asks first fixes it: a micro-batch is finished by the number of tasks that it was begun with, whatever the file
-- says meanwhile. One of which ranges are confirmed already is not divided, nor one of which records have voted: a shard's
-- votes are counted from 0, too, and would be taken for theirs. Nor is one that was divided and merged.
--
-- @key pipeline     hash   status
-- @key destination  hash   cursor, ranges; divided: <micro-batch>:<by>:<count>:<matched>, until its cursor has moved;
--                          shard:<n> -> confirmed ranges of the shard's own numbers, or =<records> once it is whole; merged: see
--                          `merge`
-- @key micro_batch  hash   state
-- @key window       hash   m, next, voted (see `vote`)
-- @key lease        hash   of the destination
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg by           text   what a shard is of: key, partition, none
-- @arg count        int    shards, 2 to 64
-- @arg matched      int    records of the micro-batch that the destination's trigger matched
-- @returns ok BY COUNT MATCHED FIRST USED; a count of 1: it is not divided; the last two as in `together`

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local d = redis.call('HMGET', K.destination, 'cursor', 'ranges', 'divided', 'merged')
if redis.call('HGET', K.micro_batch, 'state') ~= 'sealed' or tonumber(A.m) ~= number(d[1]) + 1 then
  return broken('Invariant 4: micro-batch', A.m, 'is not the sealed one behind cursor', d[1] or '0')
end
local m, by, count, matched, first, used = division(d[3])
if m == tonumber(A.m) then return {'ok', by, text(count), text(matched), text(first), text(used)} end
undivided(K.destination, count)
local w = redis.call('HMGET', K.window, 'm', 'next', 'voted')
local begun = w[1] == A.m and (number(w[2]) > 0 or string.match(w[3] or '', '^(%d+):') == A.m)
if begun or merged(d[4], A.m) or (d[2] and d[2] ~= '') then return {'ok', '', '1', A.matched, '0', '1'} end
redis.call('HSET', K.destination, 'divided', table.concat({A.m, A.by, A.count, A.matched}, ':'))
return {'ok', A.by, A.count, A.matched, '0', A.count}
