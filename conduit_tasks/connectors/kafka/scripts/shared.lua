-- shared: says that a member is there, and which of these partitions are still its own. Run again it answers the
-- same.
--
-- @key topics  hash*2000  per topic: `member|NAME` -> until (microseconds); `part|NAME` -> its member. Expires with the last
-- @arg member  text   who asks; it is there until now + ttl
-- @arg ttl     int    microseconds without a word after which a member is gone
-- @arg parts   text*2000  partitions (topic:number), sorted by topic (in the order of `topics`) and number
-- @returns the member's partitions among them

local now, mine, at, last = now_us(), {}, 0, nil
for _, part in ipairs(A.parts) do
  local topic = string.match(part, '^(.*):%d+$')
  if topic ~= last then
    at, last = at + 1, topic
    redis.call('HSET', K.topics[at], 'member|' .. A.member, text(now + tonumber(A.ttl)))
    redis.call('PEXPIRE', K.topics[at], text(2 * tonumber(A.ttl) / 1000))
  end
  -- Silence alone takes nothing away if nobody took over.
  redis.call('HSETNX', K.topics[at], 'part|' .. part, A.member)
  if redis.call('HGET', K.topics[at], 'part|' .. part) == A.member then mine[#mine + 1] = part end
end
return mine
