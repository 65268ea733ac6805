"""A database of a test's own on the server that tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from benchmarks.postgres_server import PostgresServer
from tests.waiting import until

_NUMBERS = itertools.count()


class Database:
    def __init__(self, server: PostgresServer, name: str = "") -> None:
        self.server = server
        self.name = name or f"t{next(_NUMBERS)}"

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

    def reload(self, *before: str) -> None:
        """Has the server read its files again, after these statements, and waits until new connections are as they say:
        it answers before it has."""
        whole = Database(self.server, "postgres")
        loaded = whole.run("SELECT pg_conf_load_time()")
        whole.run(*before, "SELECT pg_reload_conf()")
        until(lambda: whole.run("SELECT pg_conf_load_time()") != loaded)

    def confirmed(self, slot: str = "conduitslot") -> str:
        [(lsn,)] = self.run(f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{slot}'")
        return str(lsn)


@contextmanager
def database(server: PostgresServer) -> Iterator[Database]:
    """Made, and taken away with its slots."""
    if server.process is None:
        server.start()
    made = Database(server)
    whole = Database(server, "postgres")
    whole.run(f"CREATE DATABASE {made.name}")
    try:
        yield made
    finally:
        if server.process is None:
            server.start()
        # Who is told to end has not ended yet, and keeps its slot until then.
        ending = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{made.name}'"
        until(lambda: not whole.run(ending))
        whole.run(
            f"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '{made.name}'",
            f"DROP DATABASE {made.name} WITH (FORCE)",
        )
