-- rebuild_write: writes a portion of what is rebuilt and has no bound, before `rebuild` (X7).
--
-- @key pipeline  hash   rebuilding: see `rebuild_begin`
-- @key each      any*4000   keys to remove, then hashes to write to
-- @arg nonce     text   of `rebuild_begin`; if somebody else rebuilds it by now, nothing is done
-- @arg remove    int    how many of `each` are to be removed
-- @arg rest      text*8000  per hash: number of texts, then field and value each
-- @returns ok 1, or 0 if it was not done

if redis.call('HGET', K.pipeline, 'rebuilding') ~= A.nonce then return {'ok', 0} end
local remove = tonumber(A.remove)
for i = 1, remove do redis.call('UNLINK', K.each[i]) end
write_each(K.each, remove + 1, A.rest)
return {'ok', 1}
