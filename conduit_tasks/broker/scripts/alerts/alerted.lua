-- alerted: keeps that what `alert` gave out was told, or leaves it to the next one if it could not be.
--
-- @key alerts  hash  see `alert`
-- @arg subject text  of `alert`
-- @arg late    int   of `alert`
-- @arg nonce   text  of `alert`
-- @arg told    int   1: it was told; 0: it was not, so the next one tells it
-- @returns ok

if settled_claim(K.alerts, A.subject, A.nonce) and A.told == '1' then
  if A.late == '1' then redis.call('HSET', K.alerts, A.subject, '1') else redis.call('HDEL', K.alerts, A.subject) end
end
return {'ok'}
