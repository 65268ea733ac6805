-- announce: takes the telling of an issue that is open, or open again, for one who is about to tell it; once each.
--
-- @key announced  hash  <issue>|<who> -> when the opening that was told last came about; claim:<issue>|<who> -> <nonce>|<until>;
--                       mark: what the last look at the dead letters saw
-- @arg subject    text  <issue>|<who is told>
-- @arg opening    int   when the issue was opened (microseconds); 0: when it was first seen
-- @arg nonce      text  names this call: repeated, it is given the same answer
-- @arg ttl        int   microseconds after which another one tells, if this one died
-- @grows
-- @returns ok 1 (tell it, then `announced`) | ok 0 (it was told, or another one is telling)

local told = redis.call('HGET', K.announced, A.subject)
if told and number(told) >= number(A.opening) then return {'ok', 0} end
return {'ok', claim(K.announced, A.subject, A.nonce, A.ttl)}
