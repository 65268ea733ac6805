"""What the `redis` destination does where its stream cannot be appended to."""

from __future__ import annotations

import pytest
import redis

from conduit_tasks.connectors.redis import RedisDestination
from conduit_tasks.errors import ConfigError
from tests.conftest import RedisServer
from tests.connectors.test_delta import rows


@pytest.mark.proves("B8", "C10")
def test_rows_that_a_transaction_could_not_add_are_not_taken_for_written(redis_server: RedisServer) -> None:
    # Given a list under the stream's name: the entries of a transaction fail, and the rest of it would not
    client = redis.Redis(unix_socket_path=redis_server.url.removeprefix("unix://"))
    client.lpush("s", "x")
    destination = RedisDestination({"url": redis_server.url, "stream": "s"})
    for _ in range(2):
        destination.open(None)
        with pytest.raises(ConfigError, match="s is a list"):
            destination.write(rows({"n": 1}, {"n": 2}))
    # When it is out of the way, then they are written
    client.delete("s")
    destination.write(rows({"n": 1}, {"n": 2}))
    assert client.xlen("s") == 2
    destination.close()
    client.close()
