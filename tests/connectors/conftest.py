"""Servers that tests of connectors share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks.kafka_server import KafkaServer
    from tests.connectors.kafka import Kafka


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """The session's one Kafka."""
    from benchmarks.kafka_server import KafkaServer

    server = KafkaServer().create()
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> Iterator[Kafka]:
    """The session's Kafka, running; with topics of one's own nothing of other tests is seen."""
    from tests.connectors.kafka import Kafka

    if kafka_server.process is None:
        kafka_server.start()
    made = Kafka(kafka_server)
    yield made
    made.close()
