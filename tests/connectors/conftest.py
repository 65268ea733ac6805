"""Servers that tests of connectors share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis

from conduit_tasks.connectors.redis.connector import RedisSource
from tests.conftest import IDLE, RedisServer
from tests.connectors.redis_entries import Memory

if TYPE_CHECKING:
    from benchmarks.kafka_server import KafkaServer
    from benchmarks.postgres_server import PostgresServer
    from tests.connectors.iceberg_lake import Lake
    from tests.connectors.iceberg_server import IcebergServer
    from tests.connectors.kafka import Kafka
    from tests.connectors.mariadb import MariadbServer
    from tests.connectors.mariadb_database import MyDatabase
    from tests.connectors.moto_server import MotoServer
    from tests.connectors.postgres_database import Database


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's one PostgreSQL."""
    from benchmarks.postgres_server import PostgresServer

    server = PostgresServer().create().start()
    yield server
    server.remove()


@pytest.fixture
def db(postgres: PostgresServer) -> Iterator[Database]:
    """An empty database of the session's PostgreSQL."""
    from tests.connectors.postgres_database import database

    with database(postgres) as made:
        yield made


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariadbServer]:
    """The session's one MariaDB."""
    from tests.connectors.mariadb import MariadbServer

    server = MariadbServer().create().start()
    yield server
    server.remove()


@pytest.fixture
def mydb(mariadb: MariadbServer) -> Iterator[MyDatabase]:
    """An empty database of the session's MariaDB."""
    from tests.connectors.mariadb_database import database

    with database(mariadb) as made:
        yield made


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[tuple[KafkaServer, int]]:
    """The session's one Kafka, and its secure port."""
    from benchmarks.kafka_server import KafkaServer
    from conduit_tasks.stack.ports import free_port
    from tests.connectors.kafka import secured

    server = KafkaServer(ports=(free_port(), free_port()))
    port = secured(server)
    IDLE.append(lambda: server.kill() if server.process is not None else None)
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


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """The session's one server that speaks SQS and S3."""
    from tests.connectors.moto_server import MotoServer

    server = MotoServer()
    yield server.start()
    server.stop()


@pytest.fixture
def moto(moto_server: MotoServer) -> MotoServer:
    """The same, running; with queues and buckets of one's own nothing of other tests is seen."""
    if not moto_server.running:
        moto_server.start()
    return moto_server


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    made = redis.Redis(unix_socket_path=redis_server.url.removeprefix("unix://"), decode_responses=True)
    yield made
    made.close()


@pytest.fixture
def reader(redis_server: RedisServer) -> Iterator[Any]:
    """Makes sources that share one memory of receipts."""
    memory, made = Memory(), []

    def build(**settings: str) -> RedisSource:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        source = RedisSource({"url": redis_server.url, "streams": "s", **given})
        source.pipeline, source.connector, source.receipts = "p", "in", memory
        made.append(source)
        return source

    yield build
    for source in made:
        source.close()


@pytest.fixture(scope="session")
def iceberg_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergServer]:
    """The session's one REST catalog of Iceberg."""
    from tests.connectors.iceberg_server import IcebergServer

    made = IcebergServer(tmp_path_factory.mktemp("rest")).start()
    yield made
    made.stop()


@pytest.fixture
def lake(home: Path) -> Iterator[Lake]:
    """An Iceberg table, in a SQL catalog."""
    from tests.connectors.iceberg_lake import in_sqlite

    made = in_sqlite(home)
    yield made
    made.close()


@pytest.fixture(params=["sql", "rest"])
def either(request: pytest.FixtureRequest, home: Path) -> Iterator[Lake]:
    """An Iceberg table, in a catalog of each kind."""
    from tests.connectors.iceberg_lake import in_rest, in_sqlite

    made = in_sqlite(home) if request.param == "sql" else in_rest(request.getfixturevalue("iceberg_server").uri)
    yield made
    made.close()
