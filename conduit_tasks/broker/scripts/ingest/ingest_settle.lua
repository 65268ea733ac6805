-- ingest_settle: remembers signed requests for good whose events are in the gateway's journal by now (durability: spool).
--
-- Until then their marks are unsettled (see ingest_add): a request that comes again is neither taken nor called taken.
--
-- @key seen     zset    marks of signed requests by the second in which each is forgotten; expires
-- @arg keep     int     seconds after which the marks of a source that gets no more are gone
-- @arg marks    json<4000  (mark, second in which it is forgotten)
-- @returns ok

for _, m in ipairs(cjson.decode(A.marks)) do
  redis.call('ZREM', K.seen, '?' .. m[1])
  redis.call('ZADD', K.seen, m[2], m[1])
end
redis.call('EXPIRE', K.seen, A.keep)
return {'ok'}
