-- alert: takes the telling of a breach, or of its end, for one who is about to tell it; once each.
--
-- @key alerts  hash  <subject> -> 1 while it was told late; claim:<subject> -> <nonce>|<until>; lives as long as the pipeline
-- @arg subject text  the destination or the rule that is late, and who is told
-- @arg late    int   1: it is late now, 0: it is not
-- @arg nonce   text  names this call: repeated, it is given the same answer
-- @arg ttl     int   microseconds after which another one tells, if this one died
-- @returns ok 1 (tell it, then `alerted`) | ok 0 (it was told, or another one is telling)

local told = redis.call('HGET', K.alerts, A.subject) and '1' or '0'
if told == A.late then return {'ok', 0} end
return {'ok', claim(K.alerts, A.subject, A.nonce, A.ttl)}
