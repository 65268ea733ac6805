-- stage: what a source, or `processors`, produced of the open micro-batch, and the index of each slice's first record;
-- the first fenced one is final (invariant 3).
--
-- @key pipeline     hash   status
-- @key micro_batch  hash   nodes, slices:<source>, stage:<node>, first:<node> (first index per slice, comma separated)
-- @key lease        hash   of the node
-- @key index        hash   partition -> next index of this source; lives as long as the pipeline
-- @key planned      hash   part -> token (JSON text) of this source
-- @key figures      hash   histograms of durations (see Keys)
-- @arg token        int    of the lease
-- @arg node         text   `sources.<id>` or `processors`
-- @arg source       text   the source id, empty for `processors`
-- @arg manifest     text   names this attempt
-- @arg stage        json   the stage as the caller describes it
-- @arg observed     json   field of `figures` -> how much to add
-- @arg slices       text   the slices (JSON) with the ends that reading found; empty if none was open
-- @arg count        int    how many of `rest` are counts
-- @arg rest         text*20000  records per slice; then part and token of each open slice
-- @returns ok NODE... that have not staged yet

local no = guard(K.pipeline, K.lease, A.token)
if no then return no end
local state = redis.call('HGET', K.micro_batch, 'state')
if not state then return broken('the micro-batch', K.micro_batch, 'does not exist') end
-- Sealed: that stands, also if the state was rebuilt from the spool and no stage is known any more.
if state ~= 'open' then return {'ok'} end
local nodes = cjson.decode(redis.call('HGET', K.micro_batch, 'nodes'))
local missing, expected = {}, false
for _, node in ipairs(nodes) do
  if node == A.node then
    expected = true
  elseif redis.call('HEXISTS', K.micro_batch, 'stage:' .. node) == 0 then
    missing[#missing + 1] = node
  end
end
if not expected then return broken('Invariant 3:', A.node, 'has no part in the micro-batch') end

if redis.call('HEXISTS', K.micro_batch, 'stage:' .. A.node) == 0 then
  local records = 0
  if A.source ~= '' then
    local slices = cjson.decode(redis.call('HGET', K.micro_batch, 'slices:' .. A.source))
    local count = tonumber(A.count)
    if #slices ~= count then
      return broken('Invariant 3:', A.node, 'staged', count, 'counts for', #slices, 'slices')
    end
    local first = {}
    for i, slice in ipairs(slices) do
      local following = redis.call('HINCRBY', K.index, slice.partition, A.rest[i])
      first[i] = text(following - tonumber(A.rest[i]))
      records = records + tonumber(A.rest[i])
    end
    if A.slices ~= '' then redis.call('HSET', K.micro_batch, 'slices:' .. A.source, A.slices) end
    for i = count + 1, #A.rest, 2 do redis.call('HSET', K.planned, A.rest[i], A.rest[i + 1]) end
    redis.call('HSET', K.micro_batch, 'first:' .. A.node, table.concat(first, ','))
  elseif #missing > 0 then
    return broken('Invariant 3:', A.node, 'staged before', table.concat(missing, ', '))
  end
  redis.call('HSET', K.micro_batch, 'stage:' .. A.node, A.stage, 'won:' .. A.node, A.manifest)
  add(K.figures, A.observed)
  -- A queue that hides a message from the one whose worker it killed gives nothing: that is no progress.
  local attempts = A.source ~= '' and records == 0 and redis.call('HGET', K.lease, 'attempts')
  progressed(K.lease)
  if attempts then redis.call('HSET', K.lease, 'attempts', attempts) end
end
return {'ok', unpack(missing)}
