-- renaming: a portion of the keys of a destination's runs, which go over to another id before `rename` moves the rest; with
-- none, whether that would be done. What has gone over is not there any more: run again, or cut off, it goes on.
--
-- @key pipeline  hash  status: stopped or degraded
-- @key from      hash  delivery of the old id; if it is gone, all was done before
-- @key to        hash  delivery of the new id, which must not have got anything yet
-- @key each      any*4000  pairs: an old key, and what it becomes
-- @returns ok 1 if it may be done, 0 if there is nothing to do | runs STATUS | taken

local no = not_renamed(K.pipeline, K.from, K.to)
if no then return no end
move_each(K.each)
return {'ok', 1}
