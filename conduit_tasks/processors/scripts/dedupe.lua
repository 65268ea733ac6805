-- dedupe: who holds each key; a key that nobody holds goes to the record that asks. Run again it answers the same.
-- A Redis that is full takes them, too: they are of records under way, which have to end before memory is freed.
--
-- @key claims  string*1000  per value: the id of the record that came first; expires ttl after that
-- @arg ttl     int      milliseconds
-- @arg ids     text*1000    per claim: the id of the record that asks
-- @returns the holder's id per claim

local holders = {}
for i, claim in ipairs(K.claims) do
  local holder = redis.call('GET', claim)
  if not holder then
    holder = A.ids[i]
    redis.call('SET', claim, holder, 'PX', A.ttl)
  end
  holders[i] = holder
end
return holders
