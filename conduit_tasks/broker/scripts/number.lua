-- number: fixes the numbers of one micro-batch's records before the first of them is sent (SEMANTICS O5-O6r).
--
-- Numbers go on from micro-batch to micro-batch within an epoch. A new epoch begins where a number might have been given
-- to another record before: nothing is stored, another stream, a micro-batch out of turn or sealed anew, or a server that
-- was started since and may have forgotten what it stored last.
--
-- @key pipeline     hash   status
-- @key destination  hash   status
-- @key lease        hash   of the destination
-- @key numbers      hash   stream, epoch, m, seal, server, before and after (JSON: lane -> last number); with the pipeline
-- @arg m            int    number of the micro-batch
-- @arg token        int    of the lease
-- @arg seal         int    token that sealed the micro-batch: another one is another micro-batch
-- @arg stream       int    0: live; otherwise the epoch of the redelivery
-- @arg counts       json   lane -> records in this micro-batch
-- @returns ok EPOCH BEFORE

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local stored = redis.call('HMGET', K.numbers, 'stream', 'epoch', 'm', 'seal', 'server', 'before', 'after')
-- Invariant 5: the same micro-batch keeps its numbers, whoever asks and how often.
if stored[1] == A.stream and stored[3] == A.m and stored[4] == A.seal then return {'ok', stored[2], stored[6]} end

local info = redis.pcall('INFO', 'server')
local server = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local goes_on = stored[1] == A.stream and server ~= '' and stored[5] == server and number(stored[3]) < tonumber(A.m)
local epoch, before = stored[2], stored[7]
if not goes_on then
  epoch, before = text(math.max(now_us(), number(stored[2]) + 1)), '{}'
end
local after = cjson.decode(before)
for lane, count in pairs(cjson.decode(A.counts)) do after[lane] = (after[lane] or 0) + count end
redis.call('HSET', K.numbers, 'stream', A.stream, 'epoch', epoch, 'm', A.m, 'seal', A.seal, 'server', server,
  'before', before, 'after', cjson.encode(after))
return {'ok', epoch, before}
