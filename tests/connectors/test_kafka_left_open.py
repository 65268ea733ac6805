"""Clients of Kafka that failed are gone before there are others: each has threads and connections of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.errors import Refused, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Delivery
from tests.connectors.kafka import Kafka
from tests.connectors.test_kafka_destination import delivered, opened, record, rows
from tests.connectors.test_kafka_transactions import numbered
from tests.delivery.fakes import FakePort, work_of

pytestmark = pytest.mark.usefixtures("no_garbage_collected")


def clients() -> set[str]:
    """The main threads of librdkafka in this process: one for each client."""
    found = set()
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if (thread / "comm").read_text().startswith("rdk:main"):
                found.add(thread.name)
    return found


def refused(kafka: Kafka) -> tuple[str, list[Record]]:
    """A topic, and records of which it refuses every tenth."""
    topic = kafka.topic(**{"max.message.bytes": "3000"})
    return topic, [record(n, b"%d" % n + (b"x" * 5000 if n % 10 == 3 else b"")) for n in range(100)]


@pytest.mark.slow
def test_records_that_are_refused_leave_no_client(kafka: Kafka) -> None:
    before = clients()
    topic, records = refused(kafka)
    _, report = delivered(kafka, topic, records)
    assert report.counts.nacked == 10
    assert clients() <= before


def test_messages_that_the_client_does_not_take_cost_no_further_one(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, made = KafkaDestination._connected, []

    def counted(self: KafkaDestination, config: Mapping[str, Any]) -> Any:
        made.append(config)
        return connect(self, config)

    monkeypatch.setattr(KafkaDestination, "_connected", counted)
    topic, records = kafka.topic(), refused(kafka)[1]
    _, report = delivered(kafka, topic, records, batchBytes="3000")
    assert (report.counts.delivered, report.counts.nacked, len(made)) == (90, 10, 1)
    assert kafka.values(topic) == [b"%d" % n for n in range(100) if n % 10 != 3]


@pytest.mark.parametrize("once", [False, True])
def test_the_message_that_the_client_does_not_take_is_named_unless_another_one_fails(kafka: Kafka, once: bool) -> None:
    topic, records = refused(kafka)
    destination = opened(kafka, topic, batchBytes="6000")
    for large, at in ((5, None), (2, 2), (2, 1)):
        # Given one that is too large for the client, behind others; or also behind the first that is for the topic
        given = [replace(one, after=b"x" * 9000) if n == large else one for n, one in enumerate(records[:8])]
        first = 2 - at if at else 0
        given = given[first:]
        destination.open(None)
        with pytest.raises(Refused) as caught:
            destination.write(numbered(given, first + 1, destination=topic) if once else rows(given, first=first))
        # Then it is known by its place in the write
        assert caught.value.row == at
    destination.close()


def test_transactions_that_are_refused_leave_no_client(kafka: Kafka) -> None:
    before = clients()
    topic, records = refused(kafka)
    destination = opened(kafka, topic)
    for _ in range(3):
        destination.open(None)
        with suppress(Refused):
            destination.write(numbered(records, 1, destination=topic))
    destination.close()
    assert clients() <= before


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
    assert clients() <= before


def test_deliveries_that_fail_leave_no_client() -> None:
    before = clients()
    given = {"servers": "127.0.0.1:1", "topic": "t", "timeout": "200ms", "deliveryTimeout": "200ms"}
    for _ in range(2):
        port = FakePort(total=3, matched=range(3))
        with suppress(Unavailable):
            deliver(work_of(port), KafkaDestination(given), port, Delivery(retry=1, backoff_delay=0.0))
    assert clients() <= before


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
    assert clients() <= before
