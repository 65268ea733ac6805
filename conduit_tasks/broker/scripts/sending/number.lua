-- number: fixes the numbers of a portion of one micro-batch's lanes, before the first of its records is sent (SEMANTICS
-- O5-O6r). Called for each portion; nothing is sent until all lanes have their numbers.
--
-- Numbers go on from micro-batch to micro-batch within an epoch. A new epoch begins if a number might have been given
-- to another record before: nothing is stored, another stream, a micro-batch out of turn or sealed again, a server that
-- was started since and may have forgotten what it stored last, or lanes that are forgotten and may come back.
-- A lane that has its numbers in this micro-batch keeps them, so portions may be repeated, and a numbering that was cut
-- off goes on.
--
-- @key pipeline     hash   status
-- @key destination  hash   status
-- @key lease        hash   of the destination
-- @key numbers      hash   stream, epoch, m, seal, server; fixed: 1 once all lanes of `m` have numbers; `lane:<lane>` ->
--                          the last micro-batch with records in it, and the last numbers before and after; with the
--                          pipeline. Of an earlier version: before and after of all lanes (JSON)
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg seal         int    token that sealed the micro-batch: another one is another micro-batch
-- @arg stream       int    0: live; otherwise the epoch of the redelivery
-- @arg known        int    how many lanes there are as far as anybody knows: if more are stored, all are forgotten
-- @arg over         int    1: the last portion
-- @arg lanes        text*2000  lane and its records in this micro-batch; each
-- @returns ok EPOCH, then the last number before this micro-batch of each lane

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local stored = redis.call('HMGET', K.numbers, 'stream', 'epoch', 'm', 'seal', 'server', 'after')
local epoch = stored[2]
-- Invariant 5: the same micro-batch keeps its numbers, whoever asks and how often.
if stored[1] ~= A.stream or stored[3] ~= A.m or stored[4] ~= A.seal then
  local info = redis.pcall('INFO', 'server')
  local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
  local goes_on = stored[1] == A.stream and server ~= '' and stored[5] == server and number(stored[3]) < tonumber(A.m)
  -- Beside the lanes there are six fields.
  if not goes_on or stored[6] or redis.call('HLEN', K.numbers) - 6 > tonumber(A.known) then
    epoch = text(math.max(now_us(), number(stored[2]) + 1))
    redis.call('UNLINK', K.numbers)
  end
  redis.call('HSET', K.numbers, 'stream', A.stream, 'epoch', epoch, 'm', A.m, 'seal', A.seal, 'server', server)
  redis.call('HDEL', K.numbers, 'fixed')
end
local answer = {'ok', epoch}
for i = 1, #A.lanes, 2 do
  local lane = 'lane:' .. A.lanes[i]
  local m, before, after = string.match(redis.call('HGET', K.numbers, lane) or '', '^(%d+) (%d+) (%d+)$')
  if m ~= A.m then
    before = after or '0'
    redis.call('HSET', K.numbers, lane, A.m .. ' ' .. before .. ' ' .. text(number(before) + tonumber(A.lanes[i + 1])))
  end
  answer[#answer + 1] = before
end
if A.over == '1' then redis.call('HSET', K.numbers, 'fixed', '1') end
return answer
