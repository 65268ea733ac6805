-- share: gives a member its fair share of the partitions of a group's topics; it keeps busy ones, and gives up
-- others that are too many. Run again it answers the same.
--
-- @key topics  hash*2000  per topic: `member|NAME` -> until (microseconds); `part|NAME` -> its member. Expires with the last
-- @arg member  text   who asks; it is there until now + ttl
-- @arg ttl     int    microseconds without a word after which a member is gone
-- @arg busy    json<4000  partitions (topic:number) that the member keeps if it has them, whatever its share is
-- @arg parts   text*4000  all partitions there are, sorted by topic (in the order of `topics`) and number
-- @returns the member's partitions

local now, busy, mine = now_us(), {}, {}
for _, part in ipairs(cjson.decode(A.busy)) do busy[part] = true end

local of_topic, order = {}, {}
for _, part in ipairs(A.parts) do
  local topic = string.match(part, '^(.*):%d+$')
  if not of_topic[topic] then
    of_topic[topic] = {}
    order[#order + 1] = topic
  end
  table.insert(of_topic[topic], part)
end

for i, topic in ipairs(order) do
  local key, parts = K.topics[i], of_topic[topic]
  redis.call('HSET', key, 'member|' .. A.member, text(now + tonumber(A.ttl)))
  redis.call('PEXPIRE', key, text(2 * tonumber(A.ttl) / 1000))
  local there, members, owner = {}, {}, {}
  local all = redis.call('HGETALL', key)
  for n = 1, #all, 2 do
    local member = string.match(all[n], '^member|(.*)$')
    if not member then
      owner[string.sub(all[n], 6)] = all[n + 1]
    elseif tonumber(all[n + 1]) > now then
      local till = within(all[n + 1], now, A.ttl)
      if till < tonumber(all[n + 1]) then redis.call('HSET', key, all[n], text(till)) end
      there[member] = true
      members[#members + 1] = member
    else
      redis.call('HDEL', key, all[n])
    end
  end
  -- Whoever comes first has one more if it does not come out even; another one in the next topic.
  table.sort(members)
  local rank = 0
  for n, member in ipairs(members) do if member == A.member then rank = (n - 1 + i) % #members end end
  local fair = math.floor(#parts / #members) + (rank < #parts % #members and 1 or 0)
  local held = {}
  for _, part in ipairs(parts) do if owner[part] == A.member then held[#held + 1] = part end end
  for n = #held, 1, -1 do
    if #held > fair and not busy[held[n]] then
      redis.call('HDEL', key, 'part|' .. held[n])
      owner[held[n]] = nil
      table.remove(held, n)
    end
  end
  for _, part in ipairs(parts) do
    if #held < fair and owner[part] ~= A.member and not (owner[part] and there[owner[part]]) then
      redis.call('HSET', key, 'part|' .. part, A.member)
      owner[part] = A.member
      held[#held + 1] = part
    end
  end
  for _, part in ipairs(held) do mine[#mine + 1] = part end
end
return mine
