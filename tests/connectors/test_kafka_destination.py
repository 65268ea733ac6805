"""The kafka destination on a real Kafka: an outcome per record, and order; `test_kafka_transactions` has the rest."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.work import DeliveryReport
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.record import Data, Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.topology import Delivery
from tests.connectors.kafka import Kafka, everything
from tests.delivery.fakes import FakePort, work_of

ORIGIN = Origin("p", "in", "t:0", {"opencdc.collection": "from"})


def record(n: int, after: Data = b"", **fields: Any) -> Record:
    return Record(b"%d" % n, after=after or b"%d" % n, origin=ORIGIN, **fields)


def rows(records: Sequence[Record], *, first: int = 0, numbers: RowNumbers | None = None) -> Rows:
    seqs = list(range(first, first + len(records)))
    return Rows(spool_batch([0] * len(records), seqs, records), [ORIGIN], 1, seqs[0], seqs[-1], numbers)


def opened(kafka: Kafka, topic: str, **settings: str) -> KafkaDestination:
    given = {"servers": kafka.servers, "topic": topic, "format": "payload", "compression": "none"}
    destination = KafkaDestination({**given, **{n.replace("_", "-"): v for n, v in settings.items()}})
    destination.open(None)
    return destination


def write(kafka: Kafka, topic: str, records: Sequence[Record], **settings: str) -> None:
    destination = opened(kafka, topic, **settings)
    try:
        destination.write(rows(records))
    finally:
        destination.close()


# --- what a record becomes


def test_payload_key_and_the_headers_of_a_message_that_was_read_become_a_message(kafka: Kafka) -> None:
    topic = kafka.topic()
    headers = {"kafka.header.who": "me", "kafka.header.base64.raw": base64.b64encode(b"\xff").decode(), "other": "x"}
    write(kafka, topic, [record(1, {"a": [1, "é"]}, key={"id": 1}, metadata=headers), record(2, b"\x00\xff")])
    first, second = kafka.messages(topic)
    assert json.loads(first.value() or b"") == {"a": [1, "é"]}
    assert first.key() == b'{"id":1}'
    assert first.headers() == [("who", b"me"), ("raw", b"\xff")]
    assert (second.key(), second.value(), second.headers()) == (None, b"\x00\xff", None)


def test_headers_that_are_a_list_become_as_many_headers_again(kafka: Kafka) -> None:
    topic, copy = kafka.topic(), kafka.topic()
    sent = [("via", b"a"), ("via", b"\xff"), ("via", None), ("list.x", b"1"), ("base64.y", b"2"), ("who", b"me")]
    sent += [("null", None), ("empty", b"")]
    kafka.put(topic, [b"v"], headers=sent)
    # Given metadata that is no such list
    kafka.put(topic, [b"v"])
    one, other = everything(kafka.source(topic))
    no_list = {"kafka.header.list.z": "[1]", "kafka.header.list.w": "text", "kafka.header.list.v": '{"a": "b"}'}
    write(kafka, copy, [one, replace(other, metadata=no_list)])
    first, second = kafka.messages(copy)
    assert first.headers() == sent
    assert second.headers() == [("list.z", b"[1]"), ("list.w", b"text"), ("list.v", b'{"a": "b"}')]


def test_a_delete_is_a_tombstone(kafka: Kafka) -> None:
    topic = kafka.topic()
    write(kafka, topic, [Record(b"1", "delete", key=b"k", before=b"old", origin=ORIGIN)])
    (message,) = kafka.messages(topic)
    assert (message.key(), message.value()) == (b"k", None)


def test_the_whole_record_is_the_value_by_default_as_conduit_has_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    one = record(1, {"a": 1}, key=b"k")
    destination = KafkaDestination({"servers": kafka.servers, "topic": topic, "id-header": "id"})
    destination.open(None)
    destination.write(rows([one]))
    destination.close()
    (message,) = kafka.messages(topic)
    assert json.loads(message.value() or b"") == one.to_opencdc()
    assert message.headers() == [("id", one.id.encode())]


def test_the_topic_may_be_a_template_and_the_time_the_records_own(kafka: Kafka) -> None:
    one, two = kafka.topic(), kafka.topic()
    meta = {"opencdc.createdAt": "1700000000123456789"}
    records = [record(n, key=b"k", metadata={"to": (one, two)[n % 2], **meta}) for n in range(10)]
    write(kafka, "{{ .Metadata.to }}", records, timestamp="created")
    assert kafka.values(one) == [b"0", b"2", b"4", b"6", b"8"]
    assert {m.timestamp()[1] for m in kafka.messages(two)} == {1_700_000_000_123}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": "no topic"}, "'topic' is no name"),
        ({"topic": "{{ .Nope"}, "'topic'"),
        ({"acks": "one"}, "'acks' cannot be 'one'"),
        ({"sdk.record.format": "debezium/json"}, r"'sdk.record.format' can only be"),
    ],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaDestination({"servers": "localhost:1", **settings})


# --- outcomes


def delivered(kafka: Kafka, topic: str, records: Sequence[Record], **settings: str) -> tuple[FakePort, DeliveryReport]:
    """What the engine makes of these records, as one micro-batch."""
    port = FakePort(total=len(records), matched=range(len(records)))
    batches = [(np.arange(len(records)), spool_batch([0] * len(records), range(len(records)), records))]
    todo = replace(work_of(port), rows=lambda: iter(batches), origins=[ORIGIN])
    return port, deliver(todo, opened(kafka, topic, **settings), port, Delivery())


@pytest.mark.proves("C17", "I10")
@pytest.mark.parametrize("limit", ["topic", "client"])
def test_a_message_that_is_too_large_is_found_among_others_which_arrive_once(kafka: Kafka, limit: str) -> None:
    # Given two records, of many, that are larger than the topic, or the option batchBytes, allows
    topic = kafka.topic(**({"max.message.bytes": "3000"} if limit == "topic" else {}))
    settings = {"batchBytes": "3000"} if limit == "client" else {}
    records = [record(n, b"%d" % n + (b"x" * 5000 if n in (300, 700) else b"")) for n in range(1000)]
    # When they are delivered
    port, report = delivered(kafka, topic, records, **settings)
    # Then those two are dead letters, which say why, and the others are confirmed
    assert [letter.record.position for letter in port.stored.values()] == [b"300", b"700"]
    assert {letter.error_class for letter in port.stored.values()} == {"refused"}
    assert all("too large" in letter.error for letter in port.stored.values())
    assert (report.counts.delivered, report.counts.nacked) == (998, 2)
    # And each is there, in order; what the brokers confirmed was not sent again
    values = [int(v) for v in kafka.values(topic) if v is not None]
    assert list(dict.fromkeys(values)) == [n for n in range(1000) if n not in (300, 700)]
    assert values == sorted(values)


def test_a_topic_that_is_not_there_refuses_the_records_for_it_alone(kafka: Kafka) -> None:
    topic = kafka.topic()
    records = [record(n, metadata={"to": "nowhere" if n == 3 else "not a name" if n == 7 else topic}) for n in range(9)]
    port, _ = delivered(kafka, "{{ .Metadata.to }}", records)
    errors = [letter.error for letter in port.stored.values()]
    assert "topic nowhere" in errors[0]
    assert "'not a name' is no name of a topic" in errors[1]
    assert kafka.values(topic) == [b"%d" % n for n in range(9) if n not in (3, 7)]
