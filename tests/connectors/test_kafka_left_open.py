"""Clients of Kafka that failed are gone before there are others: each has threads and connections of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.errors import Refused, Unavailable
from conduit_tasks.record.record import Record
from tests.connectors.kafka import Kafka
from tests.connectors.test_kafka_destination import delivered, opened, record, rows
from tests.connectors.test_kafka_transactions import numbered


@pytest.fixture(autouse=True)
def no_garbage_collected() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def clients() -> int:
    """How many of librdkafka this process has."""
    names = Path("/proc/self/task").glob("*/comm")
    return sum(name.read_text().startswith("rdk:main") for name in names)


def refused(kafka: Kafka) -> tuple[str, list[Record]]:
    """A topic, and records of which it refuses every tenth."""
    topic = kafka.topic(**{"max.message.bytes": "3000"})
    return topic, [record(n, b"%d" % n + (b"x" * 5000 if n % 10 == 3 else b"")) for n in range(100)]


def test_records_that_are_refused_leave_no_client(kafka: Kafka) -> None:
    before = clients()
    topic, records = refused(kafka)
    _, report = delivered(kafka, topic, records)
    assert report.counts.nacked == 10
    assert clients() == before


def test_transactions_that_are_refused_leave_no_client(kafka: Kafka) -> None:
    before = clients()
    topic, records = refused(kafka)
    destination = opened(kafka, topic)
    for _ in range(3):
        destination.open(None)
        with suppress(Refused):
            destination.write(numbered(records, 1, destination=topic))
    destination.close()
    assert clients() == before


def test_transactions_that_are_fenced_leave_no_client(kafka: Kafka) -> None:
    before = clients()
    topic, said = kafka.topic(), []
    earlier = opened(kafka, topic)
    earlier.write(numbered([record(0)], 1, destination=topic))
    for n in range(1, 4):
        # Given an attempt that goes on after its successor has begun
        later = opened(kafka, topic)
        later.write(numbered([record(n)], n + 1, destination=topic))
        try:
            earlier.write(numbered([record(n), record(99)], n + 1, destination=topic))
        except Unavailable as error:
            said.append(str(error))
        earlier.close()
        earlier = later
    earlier.close()
    # Then nothing is left of those that failed, which say why
    assert ["fenced" in each for each in said] == [True] * 3, said
    assert clients() == before


@pytest.mark.parametrize("once", [False, True])
def test_brokers_that_do_not_answer_leave_no_client(once: bool) -> None:
    before = clients()
    given = {"servers": "127.0.0.1:1", "topic": "t", "timeout": "200ms", "deliveryTimeout": "200ms"}
    destination = KafkaDestination(given)
    for _ in range(3):
        destination.open(None)
        with suppress(Unavailable):
            destination.write(numbered([record(1)], 1, destination="t") if once else rows([record(1)]))
    destination.close()
    assert clients() == before
