-- interrupt: a pipeline that runs is about to be stopped, and is to be started again once what that is for is done.
--
-- @key pipeline  hash  status; resume: 1, until it is started
-- @returns ok

if redis.call('HGET', K.pipeline, 'status') == 'running' then redis.call('HSET', K.pipeline, 'resume', '1') end
return {'ok'}
