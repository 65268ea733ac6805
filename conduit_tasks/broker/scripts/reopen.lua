-- reopen: a task that had succeeded was cleared: what its run confirmed is to be delivered again, in a new epoch.
--
-- @grows
-- @key pipeline     hash  status
-- @key destination  hash  epoch: the last one begun
-- @key lease        hash  of the destination
-- @key run          hash  micro-batch -> ranges that run confirmed
-- @key redo         hash  epoch, run, at, micro-batch -> ranges still to redeliver; see `lapse`
-- @arg token        int   of the lease
-- @arg id           text  the run
-- @returns ok EPOCH | gone | busy RUN (another run's redelivery is not finished)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local redo = redis.call('HMGET', K.redo, 'epoch', 'run')
if redo[1] and redo[2] == A.id then
  redis.call('HSET', K.redo, 'at', text(now_us()))
  return {'ok', redo[1]}
end
if redo[1] then return {'busy', redo[2]} end
-- The call repeated after its redelivery ended must not begin another one.
local last = redis.call('HMGET', K.destination, 'epoch', 'reopened')
if last[2] == A.token .. ' ' .. A.id then return {'ok', last[1]} end
local ranges = redis.call('HGETALL', K.run)
if #ranges == 0 then return {'gone'} end
local epoch = text(number(last[1]) + 1)
redis.call('HSET', K.destination, 'epoch', epoch, 'reopened', A.token .. ' ' .. A.id)
redis.call('HSET', K.redo, 'epoch', epoch, 'run', A.id, 'at', text(now_us()))
for i = 1, #ranges, 2 do redis.call('HSET', K.redo, ranges[i], ranges[i + 1]) end
return {'ok', epoch}
