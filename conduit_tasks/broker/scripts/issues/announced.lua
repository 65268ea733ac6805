-- announced: keeps that an opening that `announce` gave out was told, or leaves it to the next one if it could not be.
--
-- @key announced  hash  see `announce`
-- @arg subject    text  of `announce`
-- @arg opening    int   of `announce`
-- @arg nonce      text  of `announce`
-- @arg told       int   1: it was told; 0: it was not, so the next one tells it
-- @returns ok

if settled_claim(K.announced, A.subject, A.nonce) and A.told == '1' then
  redis.call('HSET', K.announced, A.subject, A.opening)
end
return {'ok'}
