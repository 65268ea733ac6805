"""The kafka source on a real Kafka: offsets are planned, read by range, and committed by us (SEMANTICS B1–B6)."""

from __future__ import annotations

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.kafka.source import SLICE, shared_out
from conduit_tasks.errors import ConfigError, SourceError
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


# --- what is gone


# --- commits


"""Another installation: its own Redis is away, so that it has nothing but what it shares."""


# --- brokers that go away
