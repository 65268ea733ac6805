"""Transactions of the kafka destination on a real Kafka, which keep the number of the last row."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows, ShardName, sealed_name
from conduit_tasks.errors import Fenced, Refused, Unavailable
from conduit_tasks.record.record import Record
from tests.connectors.kafka import Kafka
from tests.connectors.test_kafka_destination import opened, record, rows


def numbered(records: Sequence[Record], first: int, *, destination: str, epoch: int = 7) -> Rows:
    numbers = RowNumbers("p", destination, epoch, np.arange(first, first + len(records)))
    return rows(records, first=first - 1, numbers=numbers)


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
