"""What Kafka's lag says to who asks whether there is news."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import Unavailable
from tests.connectors.kafka import Kafka, after


def test_messages_are_news_until_they_are_planned(kafka: Kafka) -> None:
    topic = kafka.topic(2)
    source = kafka.source(topic)
    assert source.news({}) is False
    # When one of two partitions gets messages
    kafka.put(topic, [b"a", b"b"], 1)
    assert source.news({}) is True
    # Then they are news until the last of them is planned, committed or not
    position = after({}, source.plan({}, Limit(records=1)))
    assert source.news(position) is True
    position = after(position, source.plan(position, Limit()))
    assert source.news(position) is False
    # And it is the lag of the group that counts where Redis knows nothing
    source.ack(position)
    assert source.news({}) is False
    kafka.put(topic, [b"c"])
    assert source.news(position) is True


def test_messages_that_retention_took_are_no_news(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"a", b"b"])
    kafka.cut(topic, 2)
    assert kafka.source(topic).news({}) is False


def test_the_place_of_a_topic_that_is_read_from_its_end_is_to_be_held_first(kafka: Kafka) -> None:
    topic = kafka.topic()
    kafka.put(topic, [b"before"])
    source = kafka.source(topic, readFromBeginning="false")
    # Given that nobody has looked: a run is worth it, for it holds the place
    assert source.news({}) is True
    assert source.plan({}, Limit()) == []
    assert source.news({}) is False
    # Then what comes after is news
    kafka.put(topic, [b"after"])
    assert source.news({}) is True


def test_a_share_of_another_consumer_is_no_news(kafka: Kafka, home: Path) -> None:
    # Given two consumers that have shared two partitions
    topic = kafka.topic(2)
    one, two = (kafka.source(topic, connector=c, groupID=f"g-{topic}") for c in ("one", "two"))
    for source in (one, two, one, two):
        source.plan({}, Limit())
    kafka.put(topic, [b"x"], 0)
    # Then a message is news to the one that has its partition
    assert sorted([one.news({}), two.news({})]) == [False, True]


def test_brokers_that_are_gone_are_unavailable(kafka: Kafka) -> None:
    source = kafka.source("t", servers="127.0.0.1:1", timeout="1s")
    with pytest.raises(Unavailable, match="looking at the lag"):
        source.news({})
