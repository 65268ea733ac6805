"""`largest`: one micro-batch of many records, file → Parquet, on two workers of a standalone cluster.

A worker has one core, and the destination two tasks. Start-up apart. The driver's memory is compared with that of a
micro-batch of a tenth; the memory of a task is that of its Python process, at its most.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cluster import standing
from benchmarks.measure import most_memory
from benchmarks.place import PIPELINE, ROOT, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.spark import cds

TASKS, FILES = 2, 10
EVERY = 0.5
"""Seconds between two looks at the processes of tasks."""
SAME = 1.25
"""What counts as the same memory."""


def run(place: Place, count: int) -> Result:
    """`count` records in one micro-batch, and a tenth of them."""
    place.archive()
    rows: list[Sequence[object]] = []
    drivers, most, rate = [], 0, 0.0
    for records in (count // 10, count):
        said, most = _once(place, records)
        spent = said["stages"]
        seconds = sum(spent.values())
        rate, driver = records / seconds, said["memory_python"] + said["memory_java"]
        drivers.append(driver)
        reading, delivering = spent["sources.in"], spent["destinations.to"]
        rows.append([f"{records:,}", seconds, reading, delivering, round(rate), most >> 20, driver >> 20])
    return Result(
        f"largest: {count:,} records in one micro-batch, file → Parquet, two workers of a standalone cluster",
        ("records", "seconds", "of it reading", "of it delivering", "events/s", "a task, MiB", "driver, MiB"),
        rows,
        [
            Figure("events/s", rate, "≥", 250_000),
            Figure("most memory of a task", most / 2**30, "≤", 2, " GiB"),
            Figure("driver's memory, against a tenth of the records", drivers[1] / drivers[0], "≤", SAME, " ×"),
        ],
        ["Start-up apart. The cluster, the driver and Redis are on the same cores."],
        {"records": float(count), "task": float(most), "rate": rate},
    )


def _once(place: Place, records: int) -> tuple[dict[str, Any], int]:
    """What the driver printed, and the most memory of a task in bytes. Raises SystemExit unless everything is there."""
    one = place.events(max(1, records // FILES))
    settings = {"path": "in/*.jsonl", "format": "jsonl", "settle": "0s"}
    place.pipeline(
        {"id": "in", "type": "source", "plugin": "file", "settings": settings},
        {
            "id": "to",
            "type": "destination",
            "plugin": "file",
            "settings": {"path": "out", "format": "parquet"},
            "delivery": {"order-by": "none", "parallelism": 1 if place.small else TASKS},
        },
        **{"micro-batch": {"max-records": records}},
    )
    (place.home / "in").mkdir()
    for n in range(FILES):
        shutil.copy(one, place.home / "in" / f"{n}.jsonl")
    with serving(place) as (url, _, redis_pid), _workers(place, url) as (master, workers), _watched(workers) as most:
        said = drive(replace(place, master=master), redis_pid, "--weigh")
        broker = open_broker(PIPELINE)
        delivered, sealed = broker.deliveries.get("to").counters["delivered"], broker.micro_batches.latest_sealed()
        broker.close()
    import pyarrow.parquet as pq

    there = sum(pq.read_metadata(path).num_rows for path in (place.home / "out").glob("*.parquet"))
    if not delivered == there == records or sealed != 1:
        raise SystemExit(f"{records} records: {delivered} delivered, {there} are there, {sealed} micro-batches")
    shutil.rmtree(place.home / "in")
    return said, max(most.values(), default=0)


@contextmanager
def _workers(place: Place, redis_url: str) -> Iterator[tuple[str, list[int]]]:
    """Gives the address of a cluster, and the process ids of its workers. A place for small work needs none: a child of
    the driver does it."""
    if place.small:
        yield "", [os.getpid()]
        return
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    environment |= {"CONDUIT_HOME": str(place.home), "CONDUIT_REDIS_URL": redis_url}
    with (
        tempfile.TemporaryDirectory() as folder,
        standing(Path(folder), environment, cds.spark_home(), memory="2g", options=cds.JVM_OPTIONS) as cluster,
    ):
        yield cluster.master, [worker.pid for worker in cluster.workers]


@contextmanager
def _watched(workers: Sequence[int]) -> Iterator[dict[int, int]]:
    """Looks at the Python processes below the workers while the block runs: process id → most memory, bytes."""
    found: dict[int, int] = {}
    over = threading.Event()

    def look() -> None:
        while True:
            for process in [p for pid in workers for p in psutil.Process(pid).children(recursive=True)]:
                try:
                    if "java" not in process.name():
                        found[process.pid] = max(found.get(process.pid, 0), most_memory([process.pid]))
                except (psutil.NoSuchProcess, OSError):
                    continue
            if over.wait(EVERY):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(10 * EVERY)
