"""The producer of the kafka destination that is kept from one micro-batch to the next (ADR 45), on a real Kafka."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from conduit_tasks.connectors import kept
from conduit_tasks.errors import Refused, Unavailable
from tests.connectors.kafka import Kafka
from tests.connectors.test_kafka_destination import delivered, opened, record, rows


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process keep clients, as the child of an application does."""
    monkeypatch.setattr(kept, "_kept", {})
    monkeypatch.setattr(kept, "_of", os.getpid())


@pytest.mark.usefixtures("keeping")
def test_the_next_micro_batch_is_sent_by_the_same_producer(kafka: Kafka) -> None:
    topic, other = kafka.topic(), kafka.topic()
    producers = []
    for n, (to, more) in enumerate([(topic, {}), (topic, {}), (other, {}), (topic, {"batchBytes": "2000"})]):
        destination = opened(kafka, to, **more)
        destination.write(rows([record(n)]))
        producers.append(destination._producer)
        destination.close()
    assert producers[0] is producers[1]
    assert len({id(producer) for producer in producers}) == 3
    assert kafka.values(topic) == [b"0", b"1", b"3"]


@pytest.mark.usefixtures("keeping")
def test_a_producer_of_a_write_that_failed_is_not_used_again(kafka: Kafka) -> None:
    topic = kafka.topic(**{"max.message.bytes": "2000"})
    destination = opened(kafka, topic)
    destination.write(rows([record(1)]))
    failed = destination._producer
    with pytest.raises(Refused, match="too large"):
        destination.write(rows([record(2, b"x" * 5_000)]))
    destination.close()
    destination = opened(kafka, topic)
    destination.write(rows([record(3)]))
    assert destination._producer is not failed
    destination.close()
    assert kafka.values(topic) == [b"1", b"3"]


@pytest.mark.usefixtures("keeping")
def test_a_topic_that_goes_between_two_micro_batches_refuses_its_records(kafka: Kafka) -> None:
    topic, stays = kafka.topic(), kafka.topic()
    records = [record(n, metadata={"to": to}) for n, to in enumerate((topic, stays))]
    delivered(kafka, "{{ .Metadata.to }}", records)
    kafka.remove(topic)
    port, report = delivered(kafka, "{{ .Metadata.to }}", records)
    assert [letter.record.position for letter in port.stored.values()] == [b"0"]
    assert report.counts.delivered == 1
    assert kafka.values(stays) == [b"1", b"1"]


class Silent:
    """A producer whose brokers do not answer any more, as one on connections that a firewall has forgotten."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def list_topics(self, *_: Any, **__: Any) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


@pytest.mark.usefixtures("keeping")
def test_a_producer_whose_brokers_do_not_answer_is_not_used_again(kafka: Kafka) -> None:
    # Given a producer that was given back, and has lost its brokers since
    topic = kafka.topic()
    destination = opened(kafka, topic)
    destination.write(rows([record(1)]))
    destination._producer = Silent(destination._producer)
    destination.close()
    destination = opened(kafka, topic)
    with pytest.raises(Unavailable):
        destination.write(rows([record(2)]))
    # Then the next attempt has another, and so has the next micro-batch
    destination.open(None)
    destination.write(rows([record(2)]))
    destination.close()
    destination = opened(kafka, topic)
    destination.write(rows([record(3)]))
    destination.close()
    assert kafka.values(topic) == [b"1", b"2", b"3"]


@pytest.mark.usefixtures("keeping")
def test_a_producer_is_not_kept_until_its_connections_are_forgotten(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a producer that was given back, and is not needed for longer than firewalls remember a connection
    topic = kafka.topic()
    destination = opened(kafka, topic)
    destination.write(rows([record(1)]))
    destination._producer = Silent(destination._producer)
    destination.close()
    monkeypatch.setattr(time, "monotonic", lambda now=time.monotonic: now() + 240)
    # Then the next micro-batch is sent by another, at the first attempt
    destination = opened(kafka, topic)
    destination.write(rows([record(2)]))
    destination.close()
    monkeypatch.undo()
    assert kafka.values(topic) == [b"1", b"2"]
