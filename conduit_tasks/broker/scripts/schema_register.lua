-- schema_register: gives a schema its id, and its version in a subject. Run again it answers the same.
--
-- The id comes from the schema itself, so that one that Redis has forgotten gets the same again, and no other gets its:
-- what was encoded by it is not decoded by another.
--
-- @grows
-- @key ids          hash  fingerprint → id
-- @key schemas      hash  id → schema
-- @key versions     hash  of the subject: version → id
-- @arg fingerprint  text  of the schema
-- @arg schema       text  canonical JSON
-- @arg wanted       int   the id that it should have, 1 to 2^31 - 1; one of the next, if another schema has it
-- @returns id, version

local id = redis.call('HGET', K.ids, A.fingerprint)
if not id then
  local n = tonumber(A.wanted)
  while redis.call('HEXISTS', K.schemas, text(n)) == 1 do n = n % 2147483647 + 1 end
  id = text(n)
  redis.call('HSET', K.schemas, id, A.schema)
  redis.call('HSET', K.ids, A.fingerprint, id)
end
local last = redis.call('HLEN', K.versions)
for version = 1, last do
  if redis.call('HGET', K.versions, text(version)) == id then return {tonumber(id), version} end
end
redis.call('HSET', K.versions, text(last + 1), id)
return {tonumber(id), last + 1}
