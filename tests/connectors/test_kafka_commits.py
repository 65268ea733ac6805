"""Offsets that the Kafka source commits for its group."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from conduit_tasks.errors import SourceError
from tests.connectors.kafka import Kafka, everything
from tests.connectors.test_kafka_source import GROUP, numbers


@pytest.mark.proves("B1", "B4")
def test_offsets_are_committed_by_the_ack_alone_and_only_forwards(kafka: Kafka) -> None:
    # Given a source that has read everything
    topic = kafka.topic(2)
    kafka.put(topic, numbers(0, 10))
    source = kafka.source(topic)
    assert len(everything(source)) == 10
    source.close()
    # Then nothing is committed until it is acked
    assert kafka.committed(GROUP, topic) is None
    source.ack({f"{topic}:0": 7})
    assert kafka.committed(GROUP, topic) == 7
    # And an earlier ack that comes late, or the same again (C12), changes nothing
    for offset in (7, 3):
        kafka.source(topic).ack({f"{topic}:0": offset})
    assert kafka.committed(GROUP, topic) == 7
    assert kafka.committed(GROUP, topic, 1) is None


@pytest.mark.proves("B5")
def test_without_a_position_it_goes_on_at_the_committed_offset(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, numbers(0, 10))
    kafka.source(topic).ack({f"{topic}:0": 4})
    # As after a lost Redis
    assert [r.after for r in everything(kafka.source(topic))] == numbers(4, 6)
    # And where it has both, at the later one
    assert [r.after for r in everything(kafka.source(topic), {f"{topic}:0": 8})] == numbers(8, 2)
    assert [r.after for r in everything(kafka.source(topic), {f"{topic}:0": 2})] == numbers(4, 6)


def test_a_group_that_others_subscribe_with_cannot_be_committed_and_the_message_says_so(
    kafka: Kafka, home: Path
) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"a"])
    group = f"joined-{topic}"
    joined = Consumer({"bootstrap.servers": kafka.servers, "group.id": group})
    joined.subscribe([topic])
    source = kafka.source(topic, groupID=group)
    assert len(everything(source)) == 1
    deadline = time.monotonic() + 120
    while not joined.assignment():
        assert time.monotonic() < deadline
        joined.poll(0.1)
    with pytest.raises(SourceError, match=rf"joined the group {group}"):
        source.ack({f"{topic}:0": 1})
    joined.close()
