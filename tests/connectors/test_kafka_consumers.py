"""Several consumers of one Kafka group: they share its partitions, and none commits what it lost (SEMANTICS B4, B6)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.errors import ConfigError
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings
from tests.connectors.kafka import Kafka, after
from tests.redis_server import RedisServer

INSTALLATION = """
import json, sys
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.source import KafkaSource

source = KafkaSource(json.loads(sys.argv[1]))
source.pipeline, source.connector = "p", "in"
slices = source.plan({}, Limit())
print(json.dumps([s.part for s in slices]), flush=True)
sys.stdin.readline()
source.ack({s.part: s.end for s in slices})
source.close()
print("acked", flush=True)
"""


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


# --- several consumers


def silence(home: Path, member: str) -> None:
    """As if its lease had passed without a word."""
    redis = connect(Settings(home=home))
    for key in redis.scan_iter("{conduit:kafka:*"):
        redis.hset(key, f"member|{member}", "1")
    redis.close()


@pytest.mark.proves("B4", "B6")
def test_consumers_of_one_group_share_its_partitions_and_lose_nothing_when_one_comes_or_goes(
    kafka: Kafka, home: Path
) -> None:
    # Given a consumer alone with four partitions
    topic = kafka.topic(4)
    for partition in range(4):
        kafka.put(topic, numbers(10 * partition, 10), partition)
    settings = {"groupID": f"shared-{topic}"}
    one = kafka.source(topic, connector="one", **settings)
    first = one.plan({}, Limit(records=20))
    assert len(first) == 4
    # When another one comes, while everything of the first is in flight: it gets nothing
    two = kafka.source(topic, connector="two", **settings)
    assert two.plan({}, Limit()) == []
    # When the first is done with two of them, it gives them away
    position = after({}, first)
    one.ack({f"{topic}:{n}": 5 for n in (2, 3)})
    assert one.plan(position, Limit(records=1)) != []
    theirs = two.plan({}, Limit())
    assert [(s.part, s.start) for s in theirs] == [(f"{topic}:2", 5), (f"{topic}:3", 5)]
    # When the first is silent for longer than its lease, all of it is the other's, from the committed offset
    silence(home, "p/one")
    got = two.plan(after({}, theirs), Limit())
    assert [(s.part, s.start) for s in got] == [(f"{topic}:0", 0), (f"{topic}:1", 0)]
    # Then the first is fenced: it cannot commit what is no longer its own
    one.ack({f"{topic}:0": 5, f"{topic}:2": 5})
    assert kafka.committed(settings["groupID"], topic, 0) is None
    # And the other one can
    two.ack(after(after({}, theirs), got))
    assert [kafka.committed(settings["groupID"], topic, n) for n in range(4)] == [10] * 4
    # And when the first is back it goes on where the other one is, not where it was
    kafka.put(topic, [b"new"], 0)
    silence(home, "p/two")
    assert [(s.part, s.start) for s in one.plan(position, Limit())] == [(f"{topic}:0", 10)]


@pytest.mark.proves("B4", "B6")
def test_installations_share_a_group_and_one_that_stood_still_cannot_commit_what_it_lost(
    kafka: Kafka, redis_server: RedisServer, tmp_path: Path, home: Path
) -> None:
    # Given two installations of one group, which share a Redis, and one of them has all partitions in flight
    topic = kafka.topic(2)
    for partition in range(2):
        kafka.put(topic, numbers(0, 10), partition)
    shared = {"groupID": f"far-{topic}", "share.redis": redis_server.url}
    theirs = {"servers": kafka.servers, "topics": topic, "readFromBeginning": "true", **shared, "share.as": "there"}
    other = subprocess.Popen(
        [sys.executable, "-c", INSTALLATION, json.dumps(theirs)],
        env={**os.environ, "CONDUIT_HOME": str(tmp_path), "CONDUIT_REDIS_URL": f"unix://{tmp_path}/none.sock"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        assert json.loads(other.stdout.readline()) == [f"{topic}:0", f"{topic}:1"]
        here = kafka.source(topic, **shared, **{"share.as": "here"})
        assert here.plan({}, Limit()) == []
        # When it stands still for longer than its lease, its partitions are read here
        other.send_signal(signal.SIGSTOP)
        silence(home, "there/p/in")
        slices = here.plan({}, Limit())
        assert [(s.part, s.start) for s in slices] == [(f"{topic}:0", 0), (f"{topic}:1", 0)]
        here.ack({f"{topic}:0": 7, f"{topic}:1": 7})
        # Then it cannot commit them any more when it goes on
        other.send_signal(signal.SIGCONT)
        other.stdin.write("go on\n")
        other.stdin.flush()
        assert other.stdout.readline() == "acked\n"
        assert other.wait(120) == 0
        assert [kafka.committed(shared["groupID"], topic, n) for n in range(2)] == [7, 7]
    finally:
        other.kill()
        other.wait()
        other.stdin.close()
        other.stdout.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"share.redis": "redis://h"}, "given together"),
        ({"share.redis": "redis://h", "share.as": "a"}, "'groupID' names none"),
        ({"share.redis": "http://u:hunter2@h", "share.as": "a", "groupID": "g"}, "no Redis address"),
    ],
)
def test_how_a_group_is_shared_is_checked_without_showing_the_address(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        KafkaSource({"servers": "s:1", "topics": "t", **settings})
    assert "hunter2" not in str(raised.value)
