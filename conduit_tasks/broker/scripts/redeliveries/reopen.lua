-- reopen: a task that had succeeded was cleared: what its run confirmed is to be delivered again, in a new epoch. A portion
-- of it; nothing is delivered before the last one is in.
--
-- One that was cut off between its portions goes on in its epoch. Once all are in, no portion puts back what was delivered
-- meanwhile.
--
-- @grows
-- @key pipeline     hash  status
-- @key destination  hash  epoch: the last one begun
-- @key lease        hash  of the destination
-- @key redo         hash  epoch, run, at, micro-batch -> ranges still to redeliver; filling: 1 until all are in; see `lapse`
-- @arg token        int   of the lease
-- @arg id           text  the run
-- @arg over         int   1: the last portion
-- @arg rest         text*4000  micro-batch, and the ranges that the run confirmed of it; each
-- @returns ok EPOCH | busy RUN (another run's redelivery is not finished)

local no = guard(K.pipeline, K.lease, A.token, K.destination)
if no then return no end
local redo = redis.call('HMGET', K.redo, 'epoch', 'run', 'filling')
if redo[1] and redo[2] ~= A.id then return {'busy', redo[2]} end
local epoch = redo[1]
if not epoch then
  -- The call repeated after its redelivery ended must not begin another one.
  local last = redis.call('HMGET', K.destination, 'epoch', 'reopened')
  if last[2] == A.token .. ' ' .. A.id then return {'ok', last[1]} end
  epoch = text(number(last[1]) + 1)
  redis.call('HSET', K.destination, 'epoch', epoch, 'reopened', A.token .. ' ' .. A.id)
  redis.call('HSET', K.redo, 'epoch', epoch, 'run', A.id, 'filling', '1')
  redo[3] = '1'
end
redis.call('HSET', K.redo, 'at', text(now_us()))
if redo[3] then
  for i = 1, #A.rest, 2 do redis.call('HSET', K.redo, A.rest[i], A.rest[i + 1]) end
  if A.over == '1' then redis.call('HDEL', K.redo, 'filling') end
end
return {'ok', epoch}
