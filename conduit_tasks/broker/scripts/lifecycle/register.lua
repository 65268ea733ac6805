-- register: registers the sources and destinations of the pipeline file as it is now, and says where those begin that
-- are new or come back.
--
-- A new destination starts behind the last sealed micro-batch; one that comes back goes on at its cursor, or behind
-- what was collected, or began to be, while it was away; what it had confirmed of a group (see `together`) beyond that is
-- still known. A new source has nothing to ack of what is sealed already.
--
-- @key pipeline      hash   sealed, collected: highest numbers; collecting: one whose files are being removed
-- @key sources       set    ids of the registered sources; lives as long as the pipeline
-- @key destinations  set    ids of the registered destinations; the same
-- @key each          any*1000   delivery hash per destination, then ack hash per source, in the order of `ids`
-- @arg count         int    how many of `ids` are destinations
-- @arg expect        text   last, sealed and unsealed as they were when `joined` was made
-- @arg joined        text   JSON: where the sources were, behind what is sealed; empty: not known yet
-- @arg ids           text*1000  destination ids, then source ids
-- @returns ok | join (a destination is new: call again with `joined` as it is now)

local p = redis.call('HMGET', K.pipeline, 'sealed', 'collected', 'collecting')
local sealed, collected = number(p[1]), math.max(number(p[2]), number(p[3]))
local count = tonumber(A.count)
for i = 1, count do
  if redis.call('HEXISTS', K.each[i], 'cursor') == 0 then
    local now = redis.call('HMGET', K.pipeline, 'last', 'sealed', 'unsealed')
    local numbers = text(number(now[1])) .. ' ' .. text(number(now[2])) .. ' ' .. text(number(now[3]))
    if A.joined == '' or numbers ~= A.expect then return {'join'} end
    break
  end
end
redis.call('DEL', K.sources, K.destinations)
for i, id in ipairs(A.ids) do
  if i <= count then
    redis.call('SADD', K.destinations, id)
    if redis.call('HSETNX', K.each[i], 'cursor', text(sealed)) == 1 then
      redis.call('HSET', K.each[i], 'status', 'running', 'epoch', '0', 'joined', A.joined)
    else
      local cursor = number(redis.call('HGET', K.each[i], 'cursor'))
      if cursor < collected then
        redis.call('HSET', K.each[i], 'cursor', text(collected))
        -- What it missed is not known any more by where it joined: a replay of `missing` must not take it for delivered.
        redis.call('HDEL', K.each[i], 'ranges', 'joined')
        overtaken(K.each[i], cursor, collected)
      end
    end
  else
    redis.call('SADD', K.sources, id)
    redis.call('HSETNX', K.each[i], 'm', text(sealed))
    if number(redis.call('HGET', K.each[i], 'm')) < collected then
      redis.call('HSET', K.each[i], 'm', text(collected))
    end
  end
end
return {'ok'}
