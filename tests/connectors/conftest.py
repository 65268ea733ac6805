"""Servers that tests of connectors share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks.kafka_server import KafkaServer
    from tests.connectors.kafka import Kafka


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[tuple[KafkaServer, int]]:
    """The session's one Kafka, and its secure port."""
    from benchmarks.kafka_server import KafkaServer
    from tests.connectors.kafka import secured

    server = KafkaServer()
    port = secured(server)
    try:
        yield server.create().start(), port
    finally:
        server.remove()


@pytest.fixture
def kafka(kafka_server: tuple[KafkaServer, int]) -> Iterator[Kafka]:
    """The session's Kafka, running; with topics of one's own nothing of other tests is seen."""
    from tests.connectors.kafka import Kafka

    server, secure_port = kafka_server
    if server.process is None:
        server.start()
    made = Kafka(server, secure_port)
    yield made
    made.close()
