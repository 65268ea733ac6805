-- schema_register: gives a schema its id, and its version in a subject. Run again it answers the same.
--
-- The id comes from the schema itself, so that one that Redis has forgotten gets the same again, and no other gets its:
-- what was encoded by it is not decoded by another. A subject may have any number of versions: if an id is among them
-- says `places`, which is made up in portions for the versions that an earlier version of this script gave.
--
-- @grows
-- @key ids          hash  fingerprint → id
-- @key schemas      hash  id → schema
-- @key versions     hash  of the subject: version → id
-- @key places       hash  of the subject: id → version; '': the version up to which they are here
-- @arg fingerprint  text  of the schema
-- @arg schema       text  canonical JSON
-- @arg wanted       int   the id that it should have, 1 to 2^31 - 1; one of the next, if another schema has it
-- @returns id, version | again (call it again: not all versions are in `places` yet)

local id = redis.call('HGET', K.ids, A.fingerprint)
if not id then
  local n = tonumber(A.wanted)
  while redis.call('HEXISTS', K.schemas, text(n)) == 1 do n = n % 2147483647 + 1 end
  id = text(n)
  redis.call('HSET', K.schemas, id, A.schema)
  redis.call('HSET', K.ids, A.fingerprint, id)
end
local last = redis.call('HLEN', K.versions)
local noted = math.min(number(redis.call('HGET', K.places, '')), last)
local to = math.min(last, noted + 2000)
for version = noted + 1, to do
  redis.call('HSETNX', K.places, redis.call('HGET', K.versions, text(version)), text(version))
end
if to > noted then redis.call('HSET', K.places, '', text(to)) end
if to < last then return {'again'} end
local version = redis.call('HGET', K.places, id)
if not version then
  version = text(last + 1)
  redis.call('HSET', K.versions, version, id)
  redis.call('HSET', K.places, id, version, '', version)
end
return {tonumber(id), tonumber(version)}
