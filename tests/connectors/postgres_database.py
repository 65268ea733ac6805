"""A database of a test's own on the server that tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from tests.connectors.postgres import PostgresServer

_NUMBERS = itertools.count()


class Database:
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"t{next(_NUMBERS)}"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/{self.name}"

    def run(self, *statements: str) -> list[Any]:
        """Each statement on its own; the rows of the last one."""
        connection = psycopg2.connect(self.url)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def confirmed(self, slot: str = "conduitslot") -> str:
        [(lsn,)] = self.run(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'")
        return str(lsn)


@contextmanager
def database(server: PostgresServer) -> Iterator[Database]:
    """Made, and taken away with its slots."""
    if server.process is None:
        server.start()
    made = Database(server)
    whole = Database(server)
    whole.name = "postgres"
    whole.run(f"CREATE DATABASE {made.name}")
    try:
        yield made
    finally:
        if server.process is None:
            server.start()
        whole.run(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{made.name}'",
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{made.name}'",
            f"DROP DATABASE {made.name} WITH (FORCE)",
        )
