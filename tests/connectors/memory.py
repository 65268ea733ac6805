"""A system in memory and its connector, for tests of the acceptance suite."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pytest

from conduit_tasks.connectors.acceptance import Report, accept
from conduit_tasks.connectors.base import (
    DELIVERED,
    BatchDestination,
    Limit,
    Option,
    Outcome,
    Position,
    RecordDestination,
    Slice,
    Spec,
)
from conduit_tasks.connectors.capabilities import Queue, Replayable
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import READ_SCHEMA, record_columns

# --- a system in memory, and everything that a connector of it can do wrong

STORE: list[Record] = []
ACKED: list[Position] = []
KEPT: list[socket.socket] = []


SPEC = Spec(
    "memory",
    "Records in a list",
    (
        Option("list", "which list", required=True),
        Option("token", "a password", secret=True),
        Option("case", "of the letters", choices=("upper", "lower")),
    ),
)
SETTINGS = {"list": "a", "token": "hush-hush"}


class MemorySource(Replayable):
    spec = SPEC

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        start = position.get("", 0)
        end = min(len(STORE), start + (limit.records or len(STORE)))
        middle = (start + end) // 2
        return [Slice("", "", a, b, b - a) for a, b in ((start, middle), (middle, end)) if a < b]

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        records = [replace(r, position=b"%d" % n) for n, r in enumerate(STORE)][slice.start : slice.end]
        yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def ack(self, position: Position) -> None:
        ACKED.append(position)


class MemoryDestination(RecordDestination):
    spec = SPEC

    async def send(self, record: Record) -> Outcome:
        STORE.append(record)
        return DELIVERED


class MemoryBatches(BatchDestination):
    spec = SPEC
    effectively_once = True

    def open(self, state: dict[str, Any] | None) -> None:
        del STORE[(state or {"size": 0})["size"] :]

    def write(self, rows: Rows) -> dict[str, Any] | None:
        STORE.extend(rows.records())
        return {"size": len(STORE)}


HIDDEN: dict[int, float] = {}
"""Number of a message that was handed out → when it is visible again."""
DELETED: set[int] = set()


class MemoryQueue(Queue):
    spec = SPEC
    ack_on: ClassVar[Literal["delivered", "stored"]] = "stored"

    def visible(self) -> list[int]:
        now = time.monotonic()
        return [n for n in range(len(STORE)) if n not in DELETED and HIDDEN.get(n, 0.0) < now]

    def plan(self, position: Position, limit: Limit) -> list[Slice]:
        waiting = self.visible()
        return [Slice("", "", None, None, hint=limit.records, open=True)] if waiting else []

    def read(self, slice: Slice) -> Iterator[pa.RecordBatch]:
        self.taken = self.visible()[: slice.hint]
        HIDDEN.update(dict.fromkeys(self.taken, time.monotonic() + 0.05))
        records = [replace(STORE[n], position=b"%d" % n) for n in self.taken]
        yield pa.RecordBatch.from_arrays(record_columns(records), schema=READ_SCHEMA)

    def reached(self, slice: Slice) -> Any:
        return self.receipts.put(json.dumps(self.taken).encode())

    def ack(self, position: Position) -> None:
        for name in position.values():
            DELETED.update(json.loads(self.receipts.get(name)))


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    STORE.clear()
    ACKED.clear()
    HIDDEN.clear()
    DELETED.clear()
    yield
    for each in KEPT:
        each.close()
    KEPT.clear()


def accepted(source: Any = MemorySource, destination: Any = MemoryDestination) -> Report:
    module = SimpleNamespace(SOURCE=source, DESTINATION=destination)
    return accept(module, SETTINGS, records=20, wait=0.1)
