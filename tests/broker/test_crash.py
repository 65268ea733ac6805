"""Redis killed with SIGKILL and started again on its append-only file; holders killed between any two words."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.errors import BrokerUnavailable
from tests.broker.conftest import DESTINATIONS, Feed, make_broker
from tests.fork import Fork
from tests.redis_server import RedisServer

Start = Callable[..., RedisServer]


@pytest.fixture
def server(own_redis: Start) -> RedisServer:
    """With `everysec` Redis may answer up to 2 s before it writes, where the disk is slow: what it forgets is found
    again in the spool, which tests/faults/test_forgotten.py proves. Here it is asked for what it answered."""
    return own_redis("--appendfsync", "always")


@pytest.fixture
def patient(server: RedisServer) -> Iterator[Broker]:
    broker = make_broker(server)
    yield broker
    broker.close()


def everything(broker: Broker) -> dict[str, object]:
    """All keys and values of a pipeline."""
    c = broker.redis
    read: Any = {"hash": c.hgetall, "set": c.smembers, "string": c.get}
    return {k: read[c.type(k)](k) for k in c.scan_iter(broker.keys.prefix + "*")}


@pytest.mark.proves("T1")
def test_everything_that_was_answered_survives_a_kill_of_redis(server: RedisServer, patient: Broker) -> None:
    # Given a pipeline in the middle of everything
    feed = Feed(patient)
    first = feed.sealed()
    feed.delivered(first)
    ack = patient.acks.begin("a", DESTINATIONS, "delivered")
    second = feed.sealed()
    feed.confirm("x", second, [(3, 7)], state={"length": 400}, run="r", retention=60.0)
    patient.deliveries.vote("x", second, feed.lease("x").token, 0, [("a", 3), ("n", 1)], size=5, threshold=2)
    third = feed.open()
    feed.stage(third)
    before = everything(patient)
    # When Redis dies and is started again
    server.kill()
    server.start()
    # Then nothing is missing, the same client goes on, and the intended ack is given again
    assert everything(patient) == before
    feed.confirm("x", second, [(0, 2), (8, 9)])
    assert patient.deliveries.get("x").cursor == second
    assert patient.acks.begin("a", DESTINATIONS, "delivered") == ack


@pytest.mark.proves("T1", "I5", "I10")
def test_confirms_sent_again_over_a_kill_of_redis_count_exactly_once(server: RedisServer, patient: Broker) -> None:
    # Given a holder that confirms one record after the other and repeats what was not answered
    total = 1_000
    feed = Feed(patient)
    m = feed.sealed(total)
    feed.lease("x")
    progress, failures = [0], []

    def deliver() -> None:
        for seq in range(total):
            while True:
                try:
                    feed.confirm("x", m, [(seq, seq)])
                    break
                except BrokerUnavailable:
                    time.sleep(0.01)
                except Exception as e:
                    failures.append(e)
                    raise
            progress[0] = seq

    worker = threading.Thread(target=deliver)
    worker.start()
    # When Redis is killed twice while it does
    for mark in (300, 700):
        deadline = time.monotonic() + 60
        while progress[0] < mark and worker.is_alive() and time.monotonic() < deadline:
            time.sleep(0.001)
        server.kill()
        server.start()
    worker.join(timeout=300)
    # Then each record counts once
    assert not failures
    state = patient.deliveries.get("x")
    assert (state.cursor, state.counters["delivered"]) == (m, total)


def _deliver(url_folder: str, m: int, dies_at: int, once: str) -> None:
    """A holder in a process of its own, which kills itself with SIGKILL after `dies_at` confirms."""
    broker = make_broker(RedisServer(Path(url_folder)), ttl=0.1, grace=0.05)
    lease = broker.leases.acquire("destinations.x", once, wait=120.0)
    confirmed = broker.deliveries.get("x").confirmed
    for n, (first, last) in enumerate(confirmed.complement(100)):
        for seq in range(first, last + 1):
            if n == 0 and seq - first == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            broker.deliveries.confirm("x", m, lease.token, [(seq, seq)], {"matched": 1, "delivered": 1})
    lease.release()


@pytest.mark.proves("C10", "I4", "I10")
def test_a_killed_holder_is_succeeded_and_nothing_is_confirmed_twice(server: RedisServer, patient: Broker) -> None:
    m = Feed(patient).sealed(100)
    for attempt, dies_at in enumerate([0, 30, 10]):
        holder = Fork(_deliver, str(server.folder), m, dies_at, f"attempt {attempt}")
        assert holder.end() == -signal.SIGKILL
    assert str(patient.deliveries.get("x").confirmed) == "0-39"
    assert Fork(_deliver, str(server.folder), m, 1_000, "last").end() == 0
    state = patient.deliveries.get("x")
    assert (state.cursor, state.counters["delivered"]) == (m, 100)
