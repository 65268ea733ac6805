-- rebuild: a pipeline's state is what its spool says it is (X7): the last step, in which it moves again.
--
-- What has no bound was written before (`rebuild_write`). Status, first error, and windows before the fan-out stay.
--
-- @key schema    string  version of the layout
-- @key pipeline  hash    last, sealed, collected, unsealed, held, held_from; rebuilding: see `rebuild_begin`; rebuilt: the last one's nonce
-- @key each      any*4000    hashes to write (removed before): a few per destination and source
-- @arg nonce     text    of `rebuild_begin`; repeated, it changes nothing
-- @arg version   int     of the layout
-- @arg sealed    int     the highest number given
-- @arg collected int     all up to here are gone
-- @arg held      int     bytes of the sealed ones
-- @arg rest      text*20000   per hash: number of texts, then field and value each
-- @returns ok 1, or 0 if somebody else rebuilds it by now

local p = redis.call('HMGET', K.pipeline, 'rebuilding', 'rebuilt')
if p[2] == A.nonce then return {'ok', 1} end
if p[1] ~= A.nonce then return {'ok', 0} end
for _, key in ipairs(K.each) do redis.call('UNLINK', key) end
write_each(K.each, 1, A.rest)
redis.call('SET', K.schema, A.version)
redis.call('HSETNX', K.pipeline, 'status', 'running')
redis.call('HSET', K.pipeline, 'last', A.sealed, 'sealed', A.sealed, 'collected', A.collected, 'rebuilt', A.nonce,
           'held', A.held, 'held_from', text(tonumber(A.collected) + 1))
redis.call('HDEL', K.pipeline, 'unsealed', 'rebuilding', 'slim', 'collecting')
return {'ok', 1}
