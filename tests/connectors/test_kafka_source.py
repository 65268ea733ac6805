"""The kafka source on a real Kafka: offsets are planned, read by range, and committed by us (SEMANTICS B1–B6)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.source import SLICE, shared_out
from conduit_tasks.errors import ConfigError, SourceError, Unavailable
from tests.connectors.kafka import Kafka, after, everything, records

GROUP = "conduit.p.in"


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


# --- what a message becomes


def test_key_value_headers_and_time_of_a_message_become_a_record(kafka: Kafka) -> None:
    # Given messages with a key, headers of all kinds and a time; one without a value
    topic = kafka.topic()
    headers = [("who", b"me"), ("raw", b"\xff\x00"), ("ce_type", b"made"), ("none", None)]
    kafka.put(topic, [b'{"a": 1}'], key=b"k\xff", timestamp=1_700_000_000_123, headers=headers)
    kafka.put(topic, [None], key=b"gone")
    # When they are read
    source = kafka.source(topic)
    first, second = everything(source)
    # Then nothing of them is lost
    assert (first.key, first.after, first.operation) == (b"k\xff", b'{"a": 1}', "create")
    assert first.meta() == {
        "opencdc.collection": topic,
        "kafka.partition": "0",
        "opencdc.createdAt": "1700000000123000000",
        "kafka.header.who": "me",
        "kafka.header.base64.raw": "/wA=",
        "kafka.header.ce_type": "made",
        "cloudevents.type": "made",
        "kafka.header.list.none": "[null]",
    }
    # And a tombstone is a delete
    assert (second.key, second.after, second.operation) == (b"gone", None, "delete")
    assert [r.position for r in (first, second)] == [f"{topic}:0:{n}".encode() for n in (0, 1)]


def test_headers_of_one_name_are_a_list_of_all_their_values(kafka: Kafka) -> None:
    topic = kafka.topic()
    headers = [("via", b"a"), ("who", b"me"), ("via", b"\xff"), ("via", None), ("list.x", b"1"), ("base64.y", b"2")]
    kafka.put(topic, [b"v"], headers=headers)
    (one,) = everything(kafka.source(topic))
    assert {n: v for n, v in one.meta().items() if n.startswith("kafka.header")} == {
        "kafka.header.list.via": '["a",{"base64":"/w=="},null]',
        "kafka.header.who": "me",
        "kafka.header.list.list.x": '["1"]',
        "kafka.header.list.base64.y": '["2"]',
    }


def test_a_header_whose_name_is_not_utf8_marks_its_own_message_and_keeps_no_other_back(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"before"], headers=[("who", b"me")])
    kafka.put_with_header(topic, b"with", b"na\xffme")
    kafka.put(topic, [b"after"], headers=[("who", b"me")])
    before, marked, last = everything(kafka.source(topic))
    assert [r.after for r in (before, marked, last)] == [b"before", b"with", b"after"]
    assert marked.meta()["conduit.error"] == f"{topic}:0:1: the name of a header is not UTF-8"
    assert before.meta()["kafka.header.who"] == last.meta()["kafka.header.who"] == "me"


# --- planning


def test_partitions_share_the_limit_and_are_read_to_their_ends_in_order(kafka: Kafka) -> None:
    # Given three partitions of 30, 5 and 100 messages
    topic = kafka.topic(3)
    for partition, count in enumerate((30, 5, 100)):
        kafka.put(topic, numbers(1000 * partition, count), partition)
    source, position, seen = kafka.source(topic), {}, []
    # When micro-batches of at most 40 are planned until nothing is left
    while slices := source.plan(position, Limit(records=40)):
        assert sum(s.end - s.start for s in slices) <= 40
        assert {s.part: s.partition for s in slices} == {s.part: s.part for s in slices}
        seen.append({s.part[-1]: s.end - s.start for s in slices})
        got = records(source, slices)
        assert len(got) == sum(seen[-1].values())
        position = after(position, slices)
    # Then none waited for another, and what one did not need went to the others
    assert seen[0] == {"0": 18, "1": 5, "2": 17}
    assert position == {f"{topic}:0": 30, f"{topic}:1": 5, f"{topic}:2": 100}
    assert sum(sum(each.values()) for each in seen) == 135


def test_a_long_range_is_several_slices_so_that_several_tasks_read_it(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"x"] * (SLICE + 10))
    source = kafka.source(topic)
    slices = source.plan({}, Limit())
    assert [(s.start, s.end) for s in slices] == [(0, SLICE), (SLICE, SLICE + 10)]
    assert all(s.bytes for s in slices)
    # And each can be read by itself, in any order
    positions = [[r.position for r in records(source, [s])] for s in reversed(slices)]
    assert len(positions[0]) == 10
    assert len(set(positions[0] + positions[1])) == SLICE + 10


def test_a_limit_in_bytes_is_kept_by_a_look_at_the_messages(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"x" * 10_000] * 50)
    source = kafka.source(topic)
    # Then a micro-batch holds about as much as it may
    (slice,) = source.plan({}, Limit(bytes=100_000))
    assert 8 <= slice.end <= 10
    # And one message at least, however large
    (slice,) = source.plan({}, Limit(bytes=10))
    assert slice.end == 1


def test_room_is_shared_evenly_and_what_is_left_goes_to_who_needs_it() -> None:
    a, b, c = ("t", 0), ("t", 1), ("t", 2)
    assert shared_out({a: 10, b: 100, c: 100}, 90) == {a: 10, b: 40, c: 40}
    assert shared_out({a: 1, b: 50, c: 9}, 2) == {b: 1, c: 1}
    assert shared_out({a: 5}, 0) == {}
    assert shared_out({}, 10) == {}


def test_without_reading_from_the_beginning_what_is_there_at_the_first_look_is_left_out_and_nothing_after_it(
    kafka: Kafka,
) -> None:
    # Given messages from before the first look
    topic = kafka.topic()
    kafka.put(topic, numbers(0, 5))
    settings = {"readFromBeginning": "false"}
    assert kafka.source(topic, **settings).plan({}, Limit()) == []
    # When more come before the second look, by another process
    kafka.put(topic, numbers(5, 5))
    # Then they are read, all of them
    assert [r.after for r in everything(kafka.source(topic, **settings))] == numbers(5, 5)


def test_a_partition_that_appears_later_is_read_from_its_first_message(kafka: Kafka) -> None:
    topic = kafka.topic()
    source = kafka.source(topic, readFromBeginning="false")
    assert source.plan({}, Limit()) == []
    kafka.grow(topic, 2)
    kafka.put(topic, numbers(0, 3), partition=1)
    slices = source.plan({}, Limit())
    assert [(s.part, s.start, s.end) for s in slices] == [(f"{topic}:1", 0, 3)]


def test_topics_by_pattern_are_noticed_when_they_appear(kafka: Kafka) -> None:
    here = kafka.topic()
    one = kafka.topic(prefix=f"{here}-a")
    source = kafka.source(f"^{here}-[ab]-", readFromBeginning="false")
    assert source.plan({}, Limit()) == []
    two, _ = kafka.topic(prefix=f"{here}-b"), kafka.topic(prefix=f"{here}-c")
    kafka.put(one, [b"1"])
    kafka.put(two, [b"2"])
    assert sorted(r.after for r in everything(source)) == [b"1", b"2"]


def test_one_that_is_asked_for_plan_after_plan_answers_as_one_that_is_built_for_each(kafka: Kafka) -> None:
    topic = kafka.topic()
    source = kafka.source(topic)
    position: dict[str, int] = {}
    # When messages, a partition and commits of somebody else come in between
    for step in range(3):
        kafka.put(topic, numbers(step * 5, 5))
        if step == 1:
            kafka.grow(topic, 2)
            kafka.put(topic, numbers(100, 3), partition=1)
        if step == 2:
            kafka.source(topic).ack({f"{topic}:0": 12})
        slices = source.plan(position, Limit())
        assert slices
        assert slices == kafka.source(topic).plan(position, Limit())
        position = after(position, slices)
        if step == 0:
            source.ack(position)
    assert position == {f"{topic}:0": 15, f"{topic}:1": 3}
    assert source.plan(position, Limit()) == []
    # Also where it looks at messages for a limit in bytes, and again at the same ones
    kafka.put(topic, numbers(15, 5))
    for _ in range(2):
        slices = source.plan(position, Limit(bytes=10_000))
        assert slices
        assert slices == kafka.source(topic).plan(position, Limit(bytes=10_000))
    # And it hears that its topic was removed, and made again
    kafka.remove(topic)
    with pytest.raises(SourceError, match="there is no topic"):
        source.plan(position, Limit())
    kafka.topic(name=topic)
    with pytest.raises(SourceError, match="created again"):
        source.plan(position, Limit())


def test_a_topic_that_is_not_there_is_named(kafka: Kafka) -> None:
    with pytest.raises(SourceError, match=r"there is no topic nowhere; create it"):
        kafka.source("nowhere").plan({}, Limit())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topics": "^("}, "'topics'"),
        ({"saslMechanism": "PLAIN"}, "'saslMechanism' needs"),
        ({"caCert": "x.pem"}, "'caCert' needs tls.enabled"),
        ({"tls.enabled": "true", "clientKey": "x.pem"}, "'clientCert' and 'clientKey' need each other"),
        ({"librdkafka.enable.auto.commit": "true"}, "enable.auto.commit' is decided by this connector"),
        ({"servers": ","}, "'servers' names no broker"),
    ],
)
def test_settings_that_cannot_be_are_named(kafka: Kafka, settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kafka.source(**{"topics": "t", **settings})


# --- holes


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


# --- what is gone


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


# --- commits


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


"""Another installation: its own Redis is away, so that it has nothing but what it shares."""


# --- brokers that go away


@pytest.mark.proves("B1", "B5")
def test_a_broker_that_dies_while_we_plan_read_and_ack_is_waited_for_and_nothing_is_missed(kafka: Kafka) -> None:
    # Given a slice that is read half, in small fetches
    topic = kafka.topic()
    kafka.put(topic, [b"%06d" % n + b"x" * 1000 for n in range(20_000)])
    small = {"librdkafka.fetch.message.max.bytes": "20000", "librdkafka.queued.min.messages": "20"}
    source = kafka.source(topic, timeout="10s", **small)
    slices = source.plan({}, Limit())
    reading = source.read(slices[0])
    next(reading)
    # When the broker dies
    kafka.server.kill()
    with pytest.raises(SourceError, match=r"look at the brokers|read again"):
        for _ in reading:
            pass
    # Then planning and acking say that it cannot be reached, which is tried again
    with pytest.raises(Unavailable):
        source.plan({}, Limit())
    with pytest.raises(Unavailable):
        source.ack({f"{topic}:0": 1})
    # When it is back, the same source reads the same slice to its end
    kafka.server.start()
    got = records(source, slices)
    assert [r.after[:6] for r in got if isinstance(r.after, bytes)] == [b"%06d" % n for n in range(20_000)]
    source.ack(after({}, slices))
    assert kafka.committed(GROUP, topic) == 20_000
