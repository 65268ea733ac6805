-- Divisions of micro-batches among tasks, as a destination's hash has them, and the cursor over those of a group.

-- A divided micro-batch (see `divide`): its number, by what, shards, records, and which shards have any (see `together`): so many,
-- from which one on; nothing where none is.
local function division(divided)
  local m, by, shards, matched, lanes = string.match(divided or '', '^(%d+):(%a+):(%d+):(%d+)(.*)$')
  local first, used = string.match(lanes or '', '^:(%d+):(%d+)$')
  return tonumber(m), by, tonumber(shards), tonumber(matched), tonumber(first or '0'), tonumber(used or shards or '0')
end

-- What is put before the number of a shard, and the field of the division, of a micro-batch from the one behind the cursor on.
local function places(cursor, m)
  if m == cursor + 1 then return 'shard:', 'divided' end
  return 'shard:' .. text(m) .. ':', 'divided:' .. text(m)
end

-- The records of a shard that is whole, or nil.
local function whole_of(shard) return tonumber(string.match(shard, '^=(%d+)$')) end

-- Removes a division, and what is known of so many of its shards. `before`, `name`: as of `places`.
local function forgotten(destination, shards, before, name)
  local fields = {name}
  for i = 0, shards - 1 do fields[i + 2] = before .. i end
  redis.call('HDEL', destination, unpack(fields))
end

local function undivided(destination, shards) forgotten(destination, shards or 0, 'shard:', 'divided') end

-- Whether micro-batch `m` was divided, and is finished by one task (see `merge`). `field`: of the destination.
local function merged(field, m) return string.match(field or '', '^%d+') == m end

-- The last micro-batch of a destination's group (see `together`), or 0.
local function last_of(group) return number(string.match(group or '', '%d+$')) end

-- The cursor has come to the end of micro-batch `m`. It passes those of the group behind it that are whole; the first one that is not gets the
-- fields of the micro-batch behind the cursor, of which nothing else is there then. `group`: of the destination.
local function advanced(destination, m, group)
  local last = last_of(group)
  undivided(destination, 64)
  while m < last do
    local before, name = places(m - 1, m + 1)
    local divided = redis.call('HGET', destination, name)
    local _, _, shards, _, first, used = division(divided)
    if not shards then break end
    local open = false
    for i = first, first + used - 1 do
      if not whole_of(redis.call('HGET', destination, before .. i % shards) or '') then open = true end
    end
    for i = first, first + used - 1 do
      local have = redis.call('HGET', destination, before .. i % shards)
      if open and have then redis.call('HSET', destination, 'shard:' .. i % shards, have) end
      redis.call('HDEL', destination, before .. i % shards)
    end
    redis.call('HDEL', destination, name)
    if open then
      redis.call('HSET', destination, 'divided', divided)
      return
    end
    m = m + 1
    redis.call('HSET', destination, 'cursor', text(m))
  end
  if last > 0 then redis.call('HDEL', destination, 'group') end
end

-- Everything of micro-batch `m`, the one behind the cursor, is confirmed: the cursor passes it. `group`: of the destination.
local function passed(destination, m, group)
  redis.call('HSET', destination, 'cursor', text(m))
  redis.call('HDEL', destination, 'ranges')
  if group then advanced(destination, m, group) end
end

-- The cursor was put from `cursor` on to `m`, without a delivery of what is between them.
local function overtaken(destination, cursor, m)
  local group = redis.call('HGET', destination, 'group')
  for at = cursor + 2, math.min(m, last_of(group)) do forgotten(destination, 64, places(cursor, at)) end
  if group then advanced(destination, m, group) end
end
