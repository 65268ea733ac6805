"""A broker that dies, and is back, while a source reads, and destinations send and commit: one death for all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.index import Mark
from conduit_tasks.errors import SourceError, Unavailable
from tests.connectors.kafka import Kafka, after, records
from tests.connectors.test_kafka_destination import opened, record, rows
from tests.connectors.test_kafka_source import GROUP
from tests.connectors.test_kafka_transactions import numbered

Story = Iterator[None]
"""Of a client: goes on three times, with a broker that lives, is dead, and is back."""


class Halting:
    """A producer in the middle of whose messages something is done, however fast it is with them."""

    def __init__(self, producer: Any, at: int, halt: Callable[[], object]) -> None:
        self._producer, self._left, self._halt = producer, at, halt

    def produce(self, *args: Any, **more: Any) -> None:
        self._producer.produce(*args, **more)
        self._left -= 1
        if not self._left:
            self._halt()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def sends(kafka: Kafka, dead: Event) -> Story:
    """No gap, and the order of each partition."""
    # Given a write that is under way when the broker dies
    topic = kafka.topic(2)
    count = 12_000
    records = [record(n, b"%06d" % n + b"x" * 200, key=b"%d" % (n % 7)) for n in range(count)]
    destination = opened(kafka, topic, deliveryTimeout="8s")
    destination.write(rows(records[:10]))
    first, halfway = rows(records[10:], first=10), Event()

    def halt() -> None:
        halfway.set()
        dead.wait(300)

    destination._producer = Halting(destination._producer, count // 3, halt)
    with ThreadPoolExecutor() as pool:
        written = pool.submit(destination.write, first)
        assert halfway.wait(120)
        yield
        # Then it fails as one that may recover, and again while there is no broker
        assert isinstance(written.exception(300), Unavailable)
    destination.open(None)
    destination._delivery = destination._timeout = 2.0
    with pytest.raises(Unavailable):
        destination.write(first)
    yield
    # And once the broker is back the same write is done, in the time that this machine takes for so many
    destination._delivery = destination._timeout = 120.0
    deadline = time.monotonic() + 240
    while True:
        destination.open(None)
        try:
            destination.write(first)
            break
        except Unavailable:
            assert time.monotonic() < deadline
    destination.close()
    # Then everything is there, and the last message of each record stands in order
    found: dict[int, list[int]] = {0: [], 1: []}
    for message in kafka.messages(topic):
        found[message.partition() or 0].append(int((message.value() or b"")[:6]))
    assert {n for of in found.values() for n in of} == set(range(count))
    for of in found.values():
        last = {n: at for at, n in enumerate(of)}
        assert sorted(last, key=lambda n: last[n]) == sorted(last)


def reads(kafka: Kafka) -> Story:
    """Planning, reading and acking wait for it, and nothing is missed."""
    # Given a slice that is read half, in small fetches
    topic = kafka.topic()
    kafka.put(topic, [b"%06d" % n + b"x" * 1000 for n in range(5_000)])
    small = {"librdkafka.fetch.message.max.bytes": "20000", "librdkafka.queued.min.messages": "20"}
    source = kafka.source(topic, timeout="10s", **small)
    slices = source.plan({}, Limit())
    reading = source.read(slices[0])
    next(reading)
    yield
    # When the broker dies
    with pytest.raises(SourceError, match=r"look at the brokers|read again"):
        for _ in reading:
            pass
    # Then planning and acking say that it cannot be reached, which is tried again
    with pytest.raises(Unavailable):
        source.plan({}, Limit())
    with pytest.raises(Unavailable):
        source.ack({f"{topic}:0": 1})
    yield
    # When it is back, the same source reads the same slice to its end
    got = records(source, slices)
    assert [r.after[:6] for r in got if isinstance(r.after, bytes)] == [b"%06d" % n for n in range(5_000)]
    source.ack(after({}, slices))
    assert kafka.committed(GROUP, topic) == 5_000


def commits(kafka: Kafka) -> Story:
    """A commit waits for it no longer than asked."""
    # Given a transaction whose messages are there when the broker dies
    topic = kafka.topic()
    destination = opened(kafka, topic)
    destination.write(numbered([record(0)], 1, destination=topic))
    transactions, second = destination._transactions, numbered([record(1)], 2, destination=topic)
    assert transactions is not None
    assert second.numbers is not None
    numbers, began = second.numbers, 0.0

    def dying() -> Story:
        nonlocal began
        with transactions.of(numbers, Mark.of_rows(second, numbers, None)):
            transactions.producer.produce(topic, b"1")
            assert transactions.producer.flush(120) == 0
            # Up to here the machine may be slow
            transactions._timeout = 3.0
            yield
            began = time.monotonic()

    with pytest.raises(Unavailable):
        yield from dying()
    # Then the commit fails (librdkafka's own goes on for a minute, or for good)
    assert time.monotonic() - began < 55
    yield
    # And the same write is done once the broker is back
    destination.close()
    deadline = time.monotonic() + 180
    while True:
        try:
            destination.open(None)
            destination.write(second)
            break
        except Unavailable:
            assert time.monotonic() < deadline
    destination.close()
    assert kafka.values(topic) == [b"0", b"1"]


def goes_on(kafka: Kafka, dead: Event) -> Story:
    """Transactions in whose middle it dies have each record once."""
    # Given writes, one after the other, until one has failed and some more were done
    topic = kafka.topic()
    patient = opened(kafka, topic)
    patient.write(numbered([record(n) for n in range(30)], 1, destination=topic))
    patient.close()
    destination = opened(kafka, topic, deliveryTimeout="2s", timeout="3s")
    begun, failed, again = Event(), Event(), Event()

    def all_written() -> int:
        at, more, deadline = 30, 300, time.monotonic() + 400
        while more:
            assert time.monotonic() < deadline
            try:
                destination.write(numbered([record(n) for n in range(at, at + 30)], at + 1, destination=topic))
                at += 30
                begun.set()
                more -= 30 if failed.is_set() else 0
            except Unavailable:
                if dead.is_set():
                    failed.set()
                    again.wait(300)
                destination.open(None)
        destination.close()
        return at

    with ThreadPoolExecutor() as pool:
        written = pool.submit(all_written)
        assert begun.wait(300)
        yield
        # When the broker died, and while it starts again
        assert failed.wait(300)
        again.set()
        yield
        count = written.result(300)
    # Then each record is there once, in order
    assert kafka.values(topic) == [b"%d" % n for n in range(count)]


@pytest.mark.proves("B1", "B5", "B8", "C9", "C10", "I10")
def test_a_broker_that_dies_is_waited_for_by_all_that_read_send_and_commit_and_nothing_is_missed(kafka: Kafka) -> None:
    dead = Event()
    # The commit is the first to go on, and begins as the broker goes
    stories = [commits(kafka), sends(kafka, dead), reads(kafka), goes_on(kafka, dead)]
    for story in stories:
        next(story)
    kafka.server.kill()
    dead.set()
    for story in stories:
        next(story)
    kafka.server.start()
    for story in stories:
        assert next(story, "the end") == "the end"
