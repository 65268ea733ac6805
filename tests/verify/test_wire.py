"""Commands on the connection that the processes of a history share are answered as the client's own are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import redis

from conduit_tasks.verify.wire import execute, run
from tests.redis_server import RedisServer


@pytest.fixture(params=[True, False], ids=["text", "bytes"])
def client(redis_server: RedisServer, request: pytest.FixtureRequest) -> Iterator[Any]:
    redis_server.flush()
    client = redis.Redis.from_url(redis_server.url, decode_responses=request.param)
    client.hset("h", mapping={"a": "1", "b": "2"})
    client.xadd("s", {"n": "1"}, id="1-1")
    yield client
    client.close()


COMMANDS = [
    lambda c: c.hgetall("h"),
    lambda c: c.hmget("h", ["b", "none"]),
    lambda c: c.hscan("h", 0, count=10),
    lambda c: c.xrevrange("s", count=1),
    lambda c: c.dump("h"),
    lambda c: c.set("k", "v"),
    lambda c: c.script_exists("00"),
    lambda c: c.hget("s", "a"),
    lambda c: c.evalsha("00", 0),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_answered_as_by_the_client(client: Any, command: Any) -> None:
    def said() -> Any:
        try:
            return command(client)
        except redis.ResponseError as error:
            return type(error), str(error)

    own = said()
    with patch.object(redis.Redis, "execute_command", execute):
        assert said() == own


def test_a_pipeline_is_answered_as_by_the_client(client: Any) -> None:
    def said(transaction: bool) -> Any:
        batch = client.pipeline(transaction=transaction)
        batch.hgetall("h").hget("s", "a").xrevrange("s")
        return [each if not isinstance(each, Exception) else type(each) for each in batch.execute(False)]

    for transaction in (False, True):
        own = said(transaction)
        with patch("redis.client.Pipeline.execute", run):
            assert said(transaction) == own
            with pytest.raises(redis.ResponseError, match="HGET s a"):
                client.pipeline(transaction=transaction).hget("s", "a").execute()


def test_a_command_after_one_that_was_cut_off_has_its_own_answer(client: Any) -> None:
    # Given the one connection of all, and a command on it whose answer is not read
    connection = client.connection_pool.get_connection()
    with patch.object(client.connection_pool, "get_connection", lambda *_, **__: connection):
        with (
            patch.object(connection._parser, "read_from_socket", side_effect=TimeoutError),
            pytest.raises(TimeoutError),
        ):
            execute(client, "SET", "k", "v")
        # Then the next one is not given it
        assert execute(client, "HGET", "h", "a") in ("1", b"1")
