"""A database of a test's own on the MariaDB that tests share, and its source read as a run does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from conduit_tasks.connectors.base import Limit, Position, Slice, Source
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.connectors.mariadb import MariadbServer

_NUMBERS = itertools.count()
ORIGIN = Origin("p", "in", "")


class MyDatabase:
    def __init__(self, server: MariadbServer, name: str = "") -> None:
        self.server = server
        self.name = name or f"t{next(_NUMBERS)}"

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def run(self, *statements: str) -> list[Any]:
        """Each statement on its own; the rows of the last one."""
        connection = pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="root", database=self.name or None, autocommit=True,
            charset="utf8mb4", ssl_disabled=True, init_command="SET time_zone = '+00:00'",
            client_flag=CLIENT.MULTI_STATEMENTS,
        )  # fmt: skip
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()


@contextmanager
def database(server: MariadbServer) -> Iterator[MyDatabase]:
    """Made, and taken away. A server that has ended by itself is started again: 10.11.19 was seen to die of a
    segmentation fault (`ha_maria::drop_table`, of a temporary table), which shall fail one test, not all after it."""
    if server.process is None or server.process.poll() is not None:
        server.start()
    made = MyDatabase(server)
    whole = MyDatabase(server)
    whole.name = ""
    whole.run(f"CREATE DATABASE {made.name} CHARACTER SET utf8mb4")
    try:
        yield made
    finally:
        if server.process is None or server.process.poll() is not None:
            server.start()
        whole.run(f"DROP DATABASE {made.name}")


def read(made: Source, slice: Slice) -> tuple[list[Record], Any]:
    """The records of a slice as it comes back from the broker, and where it ends."""
    slice = Slice(**json.loads(json.dumps(slice.__dict__)))
    records = [r for batch in made.read(slice) for r in to_records(batch, ORIGIN)]
    return records, made.reached(slice) if slice.open else slice.end


def step(made: Source, position: Position, limit: Limit) -> tuple[list[Record], Position] | None:
    slices = made.plan(position, limit)
    records: list[Record] = []
    for slice in slices:
        new, end = read(made, slice)
        assert limit.records is None or len(new) <= limit.records
        records += new
        position = {"": end}
    return (records, position) if slices else None


def drain(made: Source, position: Position, most: int | None = None) -> tuple[list[Record], Position]:
    records: list[Record] = []
    while (found := step(made, position, Limit(records=most))) is not None:
        records += found[0]
        position = found[1]
    return records, position
