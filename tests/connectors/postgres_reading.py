"""Reading the source of `postgres` as a run does, slice by slice."""

from __future__ import annotations

import json
from typing import Any

from conduit_tasks.connectors.base import Limit, Position, Slice
from conduit_tasks.connectors.postgres.connector import PostgresSource
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from tests.connectors.postgres_database import Database

ORIGIN = Origin("p", "in", "")


def source(db: Database, **settings: str) -> PostgresSource:
    return PostgresSource({"url": db.url, "tables": "t", **settings})


def read(made: PostgresSource, slice: Slice) -> tuple[list[Record], Any]:
    """The records of a slice as it comes back from the broker, and where it ends."""
    slice = Slice(**json.loads(json.dumps(slice.__dict__)))
    records = [r for batch in made.read(slice) for r in to_records(batch, ORIGIN)]
    return records, made.reached(slice) if slice.open else slice.end


def step(made: PostgresSource, position: Position, limit: Limit) -> tuple[list[Record], Position] | None:
    slices = made.plan(position, limit)
    records: list[Record] = []
    for slice in slices:
        new, end = read(made, slice)
        if limit.records is not None and slice.records is not None:
            assert slice.records <= limit.records
        records += new
        position = {"": end}
    return (records, position) if slices else None


def drain(made: PostgresSource, position: Position, most: int | None = None) -> tuple[list[Record], Position]:
    records: list[Record] = []
    while (found := step(made, position, Limit(records=most))) is not None:
        records += found[0]
        position = found[1]
    return records, position
