"""`standalone`: a trivial connector of Conduit's own kind, in Go, as a source and as a destination.

The connector is the tests' `counter`: as a source it counts, in messages of 1,000 records of 100 bytes; as a
destination it writes each record's payload to a file and answers. It runs on the same cores; its CPU is not told.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.data import count_of
from benchmarks.measure import Cost
from benchmarks.place import PIPELINE, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, stages
from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.pipeline.load import get_pipeline

SIZE = 100
"""Bytes of a record, the number before them apart."""


def run(place: Place, count: int) -> Result:
    """`count` records through each, start-up apart."""
    place.archive()
    settings = {"count": str(count), "size": str(SIZE), "conduit.first": "2s", "conduit.idle": "100ms"}
    with home(place, {"id": "in", "type": "source", "plugin": "standalone:counter", "settings": settings}):
        read = batches(count)
    target = {"path": str(place.out("given"))}
    there = {"id": "out", "type": "destination", "plugin": "standalone:counter", "settings": target}
    lines = {"path": str(texts(place, count)), "settle": "0s"}
    with home(place, {"id": "in", "type": "source", "plugin": "file", "settings": lines}, there) as redis_pid:
        written = drive(place, redis_pid)
    if (held := count_of(place.out("given"), b"\n")) != count:
        raise SystemExit(f"the connector wrote {held} of {count} records")
    rates = {"source": count / read.seconds, "destination": count / written["stages"]["destinations.out"]}
    return Result(
        f"standalone: a trivial connector in Go, {count:,} records each way",
        ("as", "records/s", "CPU s per M"),
        [
            ["source, to Arrow batches", round(rates["source"]), read.cpu / count * 1e6],
            ["destination, of a pipeline from a file", round(rates["destination"]), written["cpu"] / count * 1e6],
        ],
        [
            Figure("source: records/s", rates["source"], "≥", 60_000),
            Figure("destination: records/s", rates["destination"], "≥", 40_000),
        ],
        [stages(written)],
        {"events": count, "read": count, "given": held},
    )


def texts(place: Place, count: int) -> Path:
    """Returns a file of so many lines, each a number and SIZE bytes."""
    path = place.base / f"texts-{count}.txt"
    path.write_text("".join(f"{n} {'x' * SIZE}\n" for n in range(count)))
    return path


@contextmanager
def home(place: Place, *connectors: dict[str, Any]) -> Iterator[int]:
    """A home with these connectors in its pipeline, and the program in its folder; gives the process of its Redis."""
    rest = [] if len(connectors) > 1 else [{"id": "nowhere", "type": "destination", "plugin": "log"}]
    place.pipeline(*connectors, *rest)
    folder = place.home / "connectors"
    folder.mkdir()
    shutil.copy2(program(), folder / "conduit-connector-counter")
    place.out("").mkdir(exist_ok=True)
    with serving(place) as (_, _, redis_pid):
        yield redis_pid


class Kept:
    """Receipts, in memory."""

    def __init__(self) -> None:
        self._of: dict[str, bytes] = {}

    def put(self, content: bytes) -> str:
        self._of[name := str(len(self._of))] = content
        return name

    def get(self, name: str) -> bytes:
        return self._of[name]


def batches(count: int) -> Cost:
    """Reads the source of the pipeline to its end, as its node does; once a little of it, for what is imported then."""
    pipeline = get_pipeline(PIPELINE)
    cost = Cost()
    for most in (1_000, count):
        connector: Any = source_connector(pipeline, "in")
        connector.receipts = Kept()
        began, cpu = time.perf_counter(), time.process_time()
        found = sum(len(b) for b in connector.read(Slice("", "", None, None, hint=[most, 1 << 40], open=True)))
        cost = Cost(time.perf_counter() - began, time.process_time() - cpu)
        connector.close()
        if found != most:
            raise SystemExit(f"{found} of {most} records were read")
    return cost


def program() -> str:
    """Returns the connector's file, built if its sources have changed. Raises SystemExit where there is no Go."""
    from tests.connectors.standalone.programs import built

    try:
        return str(built() / "counter")
    except (OSError, AssertionError) as error:
        raise SystemExit(f"the connector was not built: `scripts/env.sh --tests` installs Go; {error}") from None
