"""The kafka destination on a real Kafka: an outcome per record, order, and transactions that keep the index."""

from __future__ import annotations

import base64
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.kafka.index import Mark
from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName, sealed_name
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.work import DeliveryReport
from conduit_tasks.errors import ConfigError, Fenced, Refused, Unavailable
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


def numbered(records: Sequence[Record], first: int, *, destination: str, epoch: int = 7) -> Rows:
    numbers = RowNumbers("p", destination, epoch, np.arange(first, first + len(records)))
    return rows(records, first=first - 1, numbers=numbers)


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


class Deadly:
    """A producer in the middle of whose messages the broker is killed, however fast it is with them."""

    def __init__(self, producer: Any, at: int, kill: Callable[[], None]) -> None:
        self._producer, self._left, self._kill = producer, at, kill

    def produce(self, *args: Any, **more: Any) -> None:
        self._producer.produce(*args, **more)
        self._left -= 1
        if not self._left:
            self._kill()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.proves("C9", "C10", "I10")
def test_a_broker_that_dies_while_we_send_leaves_no_gap_and_the_order_of_each_partition(kafka: Kafka) -> None:
    # Given a write that is under way when the broker dies
    topic = kafka.topic(2)
    count = 60_000
    records = [record(n, b"%06d" % n + b"x" * 200, key=b"%d" % (n % 7)) for n in range(count)]
    destination = opened(kafka, topic, deliveryTimeout="8s")
    destination.write(rows(records[:10]))
    first = rows(records[10:], first=10)
    destination._producer = Deadly(destination._producer, count // 3, kafka.server.kill)
    # When it is written, it fails as one that may recover, and again while there is no broker
    with pytest.raises(Unavailable):
        destination.write(first)
    destination.open(None)
    destination._delivery = destination._timeout = 2.0
    with pytest.raises(Unavailable):
        destination.write(first)
    # And once the broker is back the same write is done, in the time that this machine takes for so many
    kafka.server.start()
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


# --- transactions


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize("seed", range(2))
def test_attempts_that_die_at_any_place_and_begin_again_anywhere_before_leave_each_record_once(
    kafka: Kafka, seed: int
) -> None:
    chance, topic = random.Random(seed), kafka.topic()
    records = [record(n) for n in range(120)]
    confirmed = 0
    while confirmed < len(records):
        # Each attempt begins at what was confirmed, cuts chunks of its own, and dies after some writes
        destination, at = opened(kafka, topic), confirmed
        for _ in range(chance.randint(1, 4)):
            chunk = records[at : at + chance.randint(1, 40)]
            if chunk:
                destination.write(numbered(chunk, at + 1, destination=topic))
                at += len(chunk)
                if chance.random() < 0.4:
                    confirmed = at
        destination.close()
    assert kafka.values(topic) == [b"%d" % n for n in range(120)]
    # And a redelivery, which is an epoch of its own, comes again
    destination = opened(kafka, topic)
    destination.write(numbered(records[:3], 1, destination=topic, epoch=8))
    destination.close()
    assert len(kafka.values(topic)) == 123


@pytest.mark.proves("B8")
def test_a_chunk_of_which_one_record_is_refused_leaves_nothing(kafka: Kafka) -> None:
    topic = kafka.topic(**{"max.message.bytes": "3000"})
    destination = opened(kafka, topic)
    chunk = [record(n, b"%d" % n + (b"x" * 5000 if n == 2 else b"")) for n in range(4)]
    with pytest.raises(Refused):
        destination.write(numbered(chunk, 1, destination=topic))
    assert kafka.values(topic) == []
    # And the next transaction holds what is left
    destination.open(None)
    destination.write(numbered(chunk[:2], 1, destination=topic))
    destination.write(numbered(chunk[3:], 4, destination=topic))
    destination.close()
    assert kafka.values(topic) == [b"0", b"1", b"3"]


@pytest.mark.proves("B8", "I4")
def test_whoever_began_before_us_is_fenced_and_what_it_left_open_never_appears(kafka: Kafka) -> None:
    # Given an attempt that sent a chunk, and stands still before it commits
    topic = kafka.topic()
    old = opened(kafka, topic)
    old.write(numbered([record(0)], 1, destination=topic))
    commit = old._transactions.producer  # type: ignore[union-attr]
    commit.begin_transaction()
    commit.produce(topic, b"left open")
    commit.flush(120)
    # When a successor begins, and writes the same record and the next
    new = opened(kafka, topic)
    new.write(numbered([record(0), record(1)], 1, destination=topic))
    # Then the old one cannot go on
    with pytest.raises(Unavailable):
        old.write(numbered([record(1)], 2, destination=topic))
    old.close()
    # And what is read as committed are the records, once
    assert kafka.values(topic) == [b"0", b"1"]
    new.write(numbered([record(2)], 3, destination=topic))
    new.close()
    assert kafka.values(topic) == [b"0", b"1", b"2"]


def of_shard(records: Sequence[Record], first: int, *, destination: str, seal: int = 5) -> Rows:
    numbers = RowNumbers("p", destination, seal, np.arange(first, first + len(records)) + 1)
    return replace(rows(records, first=first, numbers=numbers), seal=seal)


@pytest.mark.proves("B8", "I4")
def test_a_shard_has_a_mark_of_its_own_which_counts_only_its_rows_of_one_micro_batch(kafka: Kafka) -> None:
    topic = kafka.topic()

    def write(name: ShardName, records: Sequence[Record], first: int, **more: Any) -> None:
        destination = opened(kafka, topic)
        destination.shard = name
        destination.write(of_shard(records, first, destination=topic, **more))
        destination.close()

    first, second = (ShardName("key", 2, n) for n in range(2))
    write(first, [record(n) for n in range(3)], 0)
    # Its successor knows what is there
    write(first, [record(n) for n in range(5)], 0)
    write(second, [record(n) for n in (5, 6)], 1)
    assert kafka.values(topic) == [b"%d" % n for n in range(7)]
    one = KafkaDestination({"servers": kafka.servers, "topic": topic})
    one.pipeline, one.connector = "p", topic
    sealed = sealed_name(5, 1)
    others = [
        ShardName("key", 3, 0),
        ShardName("partition", 2, 0),
        ShardName("key", 2, 0, (0,)),
        ShardName("key", 2, 7),
    ]
    assert one.left_by([first, second, *others], sealed) == [4, 2, -1, -1, -1, -1]
    # The next micro-batch, another life of the pipeline, another division: nothing of it is there
    assert one.left_by([first], sealed_name(5, 2)) == one.left_by([first], sealed_name(6, 1)) == [-1]
    write(first, [record(7)], 0, seal=6)
    write(others[0], [record(8)], 0, seal=6)
    assert kafka.values(topic) == [b"%d" % n for n in range(9)]


@pytest.mark.proves("B8", "I4")
@pytest.mark.parametrize("by", ["its successor", "one task that takes over"])
def test_what_a_shard_commits_before_it_is_fenced_is_known_to_who_follows(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Given a shard in the middle of a transaction, which it commits when its successor has its producer, and has not
    fenced it yet."""
    topic, shard = kafka.topic(), ShardName("key", 2, 1)
    old, new = opened(kafka, topic), opened(kafka, topic)
    for one in (old, new):
        one.shard, one.pipeline, one.connector = shard, "p", topic
    old.write(of_shard([record(0)], 0, destination=topic))
    both, connected = of_shard([record(0), record(1)], 0, destination=topic), new._connected

    def late(config: Any) -> Any:
        made = connected(config)
        old.write(both)
        return made

    monkeypatch.setattr(new, "_connected", late)
    if by == "its successor":
        new.write(both)
        new.write(of_shard([record(2)], 2, destination=topic))
    else:
        assert new.left_by([shard], both.sealed) == [1]
    with pytest.raises(Unavailable):
        old.write(of_shard([record(2)], 2, destination=topic))
    for one in (old, new):
        one.close()
    assert kafka.values(topic) == [b"%d" % n for n in range(3 if by == "its successor" else 2)]


@pytest.mark.proves("I4")
def test_an_attempt_that_lost_its_lease_does_not_fence_its_successor(kafka: Kafka) -> None:
    topic = kafka.topic()
    new = opened(kafka, topic)
    new.write(numbered([record(0)], 1, destination=topic))
    late = opened(kafka, topic)

    def lost() -> None:
        raise Fenced("the lease is lost")

    late.still_ours = lost
    with pytest.raises(Fenced):
        late.write(numbered([record(0)], 1, destination=topic))
    late.close()
    new.write(numbered([record(1)], 2, destination=topic))
    new.close()
    assert kafka.values(topic) == [b"0", b"1"]


@pytest.mark.proves("B8", "I10")
def test_a_broker_that_dies_before_a_commit_is_waited_for_no_longer_than_asked(kafka: Kafka) -> None:
    # Given a transaction whose messages are there when the broker dies
    topic = kafka.topic()
    destination = opened(kafka, topic)
    destination.write(numbered([record(0)], 1, destination=topic))
    transactions, second = destination._transactions, numbered([record(1)], 2, destination=topic)
    assert transactions is not None

    def dying() -> None:
        assert second.numbers is not None
        with transactions.of(second.numbers, Mark.of_rows(second, second.numbers, None)):
            transactions.producer.produce(topic, b"1")
            assert transactions.producer.flush(120) == 0
            # Up to here the machine may be slow
            transactions._timeout = 3.0
            kafka.server.kill()

    # Then the commit fails (librdkafka's own goes on for a minute, or for good)
    began = time.monotonic()
    with pytest.raises(Unavailable):
        dying()
    assert time.monotonic() - began < 55
    # And the same write is done once the broker is back
    kafka.server.start()
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


@pytest.mark.proves("B8")
def test_a_broker_that_dies_in_the_middle_of_transactions_has_each_record_once(kafka: Kafka) -> None:
    # Given writes, one after the other, while the broker is killed and, when one has failed, started again
    topic = kafka.topic()
    patient = opened(kafka, topic)
    patient.write(numbered([record(n) for n in range(30)], 1, destination=topic))
    patient.close()
    destination = opened(kafka, topic, deliveryTimeout="2s", timeout="3s")
    failed, at, more, deadline = threading.Event(), 30, 300, time.monotonic() + 300

    def outage() -> None:
        kafka.server.kill()
        failed.wait(300)
        kafka.server.start()

    trouble = threading.Timer(0.1, outage)
    trouble.start()
    while not failed.is_set() or trouble.is_alive() or more:
        assert time.monotonic() < deadline
        try:
            destination.write(numbered([record(n) for n in range(at, at + 30)], at + 1, destination=topic))
            at += 30
            more -= 30 if failed.is_set() and more else 0
        except Unavailable:
            failed.set()
            destination.open(None)
    destination.close()
    # Then each record is there once, in order
    assert kafka.values(topic) == [b"%d" % n for n in range(at)]
