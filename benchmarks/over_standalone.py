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
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.spool.spool import Spool

TASKS = 2
"""Tasks that write beside each other, if several do."""
SIZE = 100
"""Bytes of a record, the number before them apart."""


def run(place: Place, count: int) -> Result:
    """`count` records through each, start-up apart."""
    place.archive()
    counts = {"count": str(count), "size": str(SIZE), "conduit.first": "2s", "conduit.idle": "100ms"}
    with home(place, "standalone:counter", counts, "log", {}):
        read = batches(count, Spool(str(place.out("receipts"))))
    lines = {"path": str(texts(place, count)), "settle": "0s"}
    with home(place, "file", lines, "standalone:counter", {"path": str(place.out("given"))}) as redis_pid:
        written = drive(place, redis_pid)
    held = given(place, count)
    rates = {"source": count / read.seconds, "destination": count / written["stages"]["destinations.out"]}
    rows = [
        ["source, to Arrow batches", round(rates["source"]), read.cpu / count * 1e6],
        ["destination, of a pipeline from a file", round(rates["destination"]), written["cpu"] / count * 1e6],
    ]
    if not place.small:  # several tasks are Spark's, however small the work is
        several = {"parallelism": TASKS, "order-by": "none"}
        with home(place, "file", lines, "standalone:counter", {"path": str(place.out("given"))}, several) as redis_pid:
            beside = drive(place, redis_pid)
        given(place, count)
        rate, cpu = count / beside["stages"]["destinations.out"], beside["cpu"] / count * 1e6
        rows.append([f"the same, by {TASKS} tasks with a connector each", round(rate), cpu])
    return Result(
        f"standalone: a trivial connector in Go, {count:,} records each way",
        ("as", "records/s", "CPU s per M"),
        rows,
        [
            Figure("source: records/s", rates["source"], "≥", 60_000),
            Figure("destination: records/s", rates["destination"], "≥", 40_000),
        ],
        [stages(written)],
        {"events": count, "read": count, "given": held},
    )


def given(place: Place, count: int) -> int:
    """Returns how many records the connector wrote. Raises SystemExit unless it is all of them."""
    if (held := count_of(place.out("given"), b"\n")) != count:
        raise SystemExit(f"the connector wrote {held} of {count} records")
    return held


def texts(place: Place, count: int) -> Path:
    """Returns a file of so many lines, each a number and SIZE bytes."""
    path = place.base / f"texts-{count}.txt"
    path.write_text("".join(f"{n} {'x' * SIZE}\n" for n in range(count)))
    return path


@contextmanager
def home(
    place: Place,
    source: str,
    settings: dict[str, str],
    destination: str,
    target: dict[str, str],
    delivery: dict[str, Any] | None = None,
) -> Iterator[int]:
    """A home with a pipeline from one plugin to another, and the connector's program; gives the process of its
    Redis."""
    place.pipeline(
        {"id": "in", "type": "source", "plugin": source, "settings": settings},
        {
            "id": "out",
            "type": "destination",
            "plugin": destination,
            "settings": target,
            **({"delivery": delivery} if delivery else {}),
        },
    )
    folder = place.home / "connectors"
    folder.mkdir()
    shutil.copy2(program(), folder / "conduit-connector-counter")
    place.out("").mkdir(exist_ok=True)
    with serving(place) as (_, _, redis_pid):
        yield redis_pid


def batches(count: int, spool: Spool) -> Cost:
    """Reads the source of the pipeline to its end, as its node does; once a little of it, for what is imported then."""
    pipeline = get_pipeline(PIPELINE)
    cost = Cost()
    for most in (1_000, count):
        connector: Any = source_connector(pipeline, "in")
        connector.receipts = Kept(spool, f"of-{most}")
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
