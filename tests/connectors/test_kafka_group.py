"""The group's committed offsets where the brokers cannot say them."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.group import Group
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.errors import Unavailable
from conduit_tasks.settings import Settings
from conduit_tasks.spark.datasources import SliceReader, SliceStream
from tests.connectors.kafka import Kafka, everything


@pytest.mark.proves("B4", "C10")
def test_an_error_of_one_partition_is_not_taken_for_a_place_that_was_never_committed() -> None:
    # Given a group of which one partition's offset cannot be said, and whatever it is asked to commit
    committed: list[object] = []

    def answer(_: object, timeout: float) -> list[SimpleNamespace]:
        error = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        return [SimpleNamespace(topic="t", partition=0, offset=-1001, error=error)]

    source = KafkaSource({"servers": "127.0.0.1:1", "topics": "t"})
    group = Group(source.settings, "g", 1.0)
    group.consumer.close()
    group.consumer = SimpleNamespace(committed=answer, close=lambda: None)
    group.partitions = lambda _: [("t", 0)]  # type: ignore[method-assign]
    group.beginnings = lambda _: {("t", 0): 0}  # type: ignore[method-assign]
    group.ends = lambda _, *, stable=True: {("t", 0): 500}  # type: ignore[method-assign]
    group.commit = committed.append  # type: ignore[method-assign]
    source._connected = group
    # When it is planned, then it waits, and the end is not committed as its place
    with pytest.raises(Unavailable, match="planning"):
        source.plan({}, Limit())
    assert committed == []


@pytest.mark.proves("B4", "C10")
def test_a_place_that_is_not_known_is_not_taken_for_none(kafka: Kafka) -> None:
    # Given a place of the group, and another consumer's transaction that is about to move it
    topic = kafka.topic()
    kafka.put(topic, [b"%d" % n for n in range(5)])
    source = kafka.source(topic, readFromBeginning="false", timeout="2s")
    other = Consumer({"bootstrap.servers": kafka.servers, "group.id": source.group})
    other.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    producer = kafka.producer(transactional_id=uuid.uuid4().hex)
    producer.init_transactions(120)
    producer.begin_transaction()
    producer.send_offsets_to_transaction([TopicPartition(topic, 0, 3)], other.consumer_group_metadata(), 120)
    # When it is planned, then it waits, and moves nothing
    with pytest.raises(Unavailable, match="planning"):
        source.plan({}, Limit())
    producer.commit_transaction(120)
    other.close()
    # Then it goes on at the group's place
    assert kafka.committed(source.group, topic) == 3
    assert [r.after for r in everything(kafka.source(topic, readFromBeginning="false"))] == [b"3", b"4"]


@pytest.mark.proves("B1", "C10")
def test_streams_of_spark_do_not_move_each_others_place(kafka: Kafka, home: Path) -> None:
    # Given two queries of one topic, in no group that they share, and one that is done with what is there
    topic = kafka.topic()
    kafka.put(topic, [b"%d" % n for n in range(5)])
    given = {"servers": kafka.servers, "topics": topic, "readFromBeginning": "true"}
    ends = []
    for _ in range(2):
        stream = SliceStream("kafka", given, Settings(home=home), 100)
        end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        stream.commit(end)
        ends.append(end["position"])
        # Then the other one gets all of it as well, and a frame too
        assert [(s.start, s.end) for s in SliceReader("kafka", given, Settings(home=home)).plan({}, Limit())] == [
            (0, 5)
        ]
    assert ends == [{f"{topic}:0": 5}] * 2
    # And a stream goes on in its own place, though its checkpoint alone knows it
    kafka.put(topic, [b"5"])
    again = SliceStream("kafka", given, Settings(home=home), 100).latestOffset(end, ReadAllAvailable())
    assert [(s["start"], s["end"]) for s in again["slices"]] == [(5, 6)]
    assert again["reader"] == end["reader"]
