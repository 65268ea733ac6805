-- schema_register: gives a schema its id, and its version in a subject. Run again it answers the same.
--
-- @grows
-- @key ids          hash  fingerprint → id
-- @key schemas      hash  id → schema
-- @key versions     hash  of the subject: version → id
-- @arg fingerprint  text  of the schema
-- @arg schema       text  canonical JSON
-- @returns id, version

local id = redis.call('HGET', K.ids, A.fingerprint)
if not id then
  id = text(redis.call('HLEN', K.ids) + 1)
  redis.call('HSET', K.schemas, id, A.schema)
  redis.call('HSET', K.ids, A.fingerprint, id)
end
local last = redis.call('HLEN', K.versions)
for version = 1, last do
  if redis.call('HGET', K.versions, text(version)) == id then return {tonumber(id), version} end
end
redis.call('HSET', K.versions, text(last + 1), id)
return {tonumber(id), last + 1}
