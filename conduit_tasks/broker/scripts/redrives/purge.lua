-- purge: dead letters are given up; those under a redrive are not.
--
-- @key lease    hash   of the destination
-- @key dead     hash   <epoch>-<m>-<seq>-<ord> -> when, attempts, class
-- @key redrive  hash   see `claim`; a claim counts while its lease is held
-- @arg letters  text*1000  which
-- @returns ok LETTER… (those that are kept, because they are being redriven)

local l, now = redis.call('HMGET', K.lease, 'token', 'owner', 'until', 'ttl'), now_us()
local till = number(l[3])
local held = l[2] and l[2] ~= '' and till > now and till == within(till, now, l[4])
  and l[1] == redis.call('HGET', K.redrive, 'token')
local answer = {'ok'}
for _, letter in ipairs(A.letters) do
  if held and redis.call('HGET', K.redrive, letter) == 'claimed' then
    answer[#answer + 1] = letter
  else
    redis.call('HDEL', K.dead, letter)
  end
end
return answer
