-- ring: wakes the nodes that wait: something was opened, staged, sealed or confirmed, or the status has changed.
--
-- @key bell stream  one entry: the last change that somebody may wait for
-- @arg what text    what has changed, for who reads along
-- @returns ok

redis.call('XADD', K.bell, 'MAXLEN', 1, '*', 'what', A.what)
return {'ok'}
