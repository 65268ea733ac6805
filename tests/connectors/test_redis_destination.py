"""The `redis` destination: each record is an entry, once, also where its stream cannot be appended to."""

from __future__ import annotations

import json

import pytest
import redis

from conduit_tasks.connectors.redis.connector import RedisDestination
from conduit_tasks.errors import ConfigError, Fenced, Refused, Unavailable
from conduit_tasks.record.record import Record
from tests.connectors.redis_entries import ORIGIN
from tests.connectors.test_delta import rows
from tests.redis_server import RedisServer


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


@pytest.mark.proves("B8", "O5", "I4")
def test_a_write_that_comes_again_is_left_out_and_of_two_writers_one_succeeds(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    one, other = (RedisDestination({"url": redis_server.url, "stream": "s"}) for _ in range(2))
    one.open(None)
    other.open(None)
    one.write(rows({"n": 1}, {"n": 2}))
    other.write(rows({"n": 1}, {"n": 2}, {"n": 3}))
    assert [json.loads(e["data"])["n"] for _, e in client.xrange("s")] == [1, 2, 3]
    other.write(rows({"n": 3}, first=3))
    other.write(rows({"n": 1}, epoch=1))
    assert client.xlen("s") == 4

    # Another writer commits between our look and our transaction
    def overtaken() -> None:
        one.write(rows({"n": 4}, first=4))

    other.still_ours = overtaken
    with pytest.raises(Unavailable, match="another writer"):
        other.write(rows({"n": 4}, first=4))

    def lost() -> None:
        raise Fenced("lost")

    other.still_ours = lost
    with pytest.raises(Fenced):
        other.write(rows({"n": 5}, first=5))
    assert client.xlen("s") == 5
    one.close()
    other.close()


def test_fields_are_the_records_or_the_payloads_own(client: redis.Redis, redis_server: RedisServer) -> None:
    whole = RedisDestination({"url": redis_server.url, "stream": "s", "max-length": "2"})
    whole.open(None)
    whole.write(rows({"n": 1}, numbered=False))
    whole.close()
    record = Record(b"1", after={"n": 1}, origin=ORIGIN)
    assert client.xrange("s")[0][1] == {"id": record.id, "operation": "create", "data": '{"n":1}'}
    own = RedisDestination({"url": redis_server.url, "stream": "t", "fields": "payload"})
    own.open(None)
    own.write(rows({"n": 1, "s": "text", "l": [1, None]}, numbered=False))
    assert client.xrange("t")[0][1] == {"n": "1", "s": "text", "l": "[1,null]"}
    with pytest.raises(Refused, match="no fields"):
        own.write(rows(b"raw", numbered=False))
    own.close()
