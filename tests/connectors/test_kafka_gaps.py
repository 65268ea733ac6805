"""Offsets at which there is nothing: holes, open transactions, retention, topics that were created again."""

from __future__ import annotations

import time

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import SourceError
from tests.connectors.kafka import Kafka, after, everything, records
from tests.connectors.test_kafka_source import numbers


@pytest.mark.proves("I3")
def test_a_range_with_holes_ends_by_position(kafka: Kafka) -> None:
    # Given messages between aborted and committed transactions, whose marks and messages take offsets
    topic = kafka.topic()
    kafka.put(topic, [b"a"])
    kafka.transaction(topic, [b"x", b"y"], abort=True)
    kafka.transaction(topic, [b"b", b"c"])
    kafka.transaction(topic, [b"z"], abort=True)
    source = kafka.source(topic)
    # When it is read in ranges of two offsets, of which some hold nothing
    position, got, again = {}, [], []
    while slices := source.plan(position, Limit(records=2)):
        assert all(s.records is None for s in slices)
        got += records(source, slices)
        again += records(kafka.source(topic), slices)
        position = after(position, slices)
    # Then each committed message is there once, the same at each reading, and the end is reached
    assert [r.after for r in got] == [b"a", b"b", b"c"]
    assert again == got
    assert position == {f"{topic}:0": 9}


@pytest.mark.proves("I3")
def test_compaction_leaves_holes_that_are_passed_over(kafka: Kafka) -> None:
    # Given a topic whose older values of a key were removed
    config = {"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "100"}
    topic = kafka.topic(**config, **{"min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100"})
    kafka.put(topic, numbers(0, 100), key=b"same")
    deadline = time.monotonic() + 120
    # (to the last one: what was seen while more are still removed would not be what is read)
    while [value for value in kafka.values(topic) if value != b"next"] != [b"99"]:
        assert time.monotonic() < deadline, "nothing was compacted"
        time.sleep(0.15)
        # A segment is closed, and so can be compacted, when the next message comes.
        kafka.put(topic, [b"next"], key=b"other")
    # When it is read in small ranges
    source, position, got = kafka.source(topic), {}, []
    while slices := source.plan(position, Limit(records=30)):
        got += records(source, slices)
        position = after(position, slices)
    # Then exactly what is left came
    assert [r.after for r in got if r.key == b"same"] == [b"99"]
    # And the end, which lies far behind the number of messages, was reached
    assert position[f"{topic}:0"] > 100


def test_nothing_is_read_past_an_open_transaction(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"a"])
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.produce(topic, b"b", partition=0)
    producer.flush(120)
    kafka.put(topic, [b"c"])
    source = kafka.source(topic)
    slices = source.plan({}, Limit())
    assert [r.after for r in records(source, slices)] == [b"a"]
    # When it is decided, what it held and what waited behind it is read, in order
    kafka.decide(producer, topic)
    assert [r.after for r in everything(source, after({}, slices))] == [b"b", b"c"]


def test_messages_that_retention_removed_are_told_and_skipped_only_where_asked(kafka: Kafka) -> None:
    # Given a planned slice, and retention that takes half of it before it is read
    topic = kafka.topic()
    kafka.put(topic, numbers(0, 10))
    source = kafka.source(topic)
    slices = source.plan({}, Limit())
    kafka.cut(topic, 6)
    # Then reading says which partition, and what to do
    with pytest.raises(SourceError, match=rf"{topic}:0: offset 0 is gone, the partition begins at 6.*on-lost: skip"):
        records(source, slices)
    # And so does planning
    with pytest.raises(SourceError, match=rf"{topic}:0: offset 3 is gone"):
        source.plan({f"{topic}:0": 3}, Limit())
    # When skipping is asked for, both go on with what is there
    skipping = kafka.source(topic, on_lost="skip")
    assert [r.after for r in records(skipping, slices)] == numbers(6, 4)
    assert [r.after for r in everything(skipping, {f"{topic}:0": 3})] == numbers(6, 4)
    # And a slice of which nothing is left is empty
    kafka.cut(topic, 10)
    assert records(kafka.source(topic, on_lost="skip"), slices) == []


def test_a_topic_that_was_created_again_is_told(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, numbers(0, 3))
    with pytest.raises(SourceError, match=r"offset 70 is gone, the partition begins at 0.*created again"):
        kafka.source(topic).plan({f"{topic}:0": 70}, Limit())
    assert len(everything(kafka.source(topic, on_lost="skip"), {f"{topic}:0": 70})) == 3
