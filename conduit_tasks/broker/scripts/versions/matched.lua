-- matched: before a destination is renamed, micro-batches say of the new id what they say of the old one (`rename`).
--
-- What they say of the old one stays, as the rename may not come about; nobody asks for it afterwards.
--
-- @key each  hash*1000  micro-batches: matched (JSON): destination -> records
-- @arg old   text  id
-- @arg new   text  id
-- @returns ok

for _, key in ipairs(K.each) do
  local matched = redis.call('HGET', key, 'matched')
  if matched then
    local of = cjson.decode(matched)
    if of[A.old] and not of[A.new] then
      of[A.new] = of[A.old]
      redis.call('HSET', key, 'matched', cjson.encode(of))
    end
  end
end
return {'ok'}
