"""Part of `tasks`: files of lines, Parquet files, commits of Delta and objects of S3, by one and by two Spark tasks.

The S3 is moto, a process of its own on the same cores, its CPU told apart; it is a limit of its own. What has arrived
is counted where it is, not by the destination's word.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks.place import PIPELINE, Place, serving
from benchmarks.tables import Figure
from benchmarks.three import drive, source
from conduit_tasks.connectors import aws
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.stack.ports import free_port

BUCKET = "bench"
KINDS = ("parquet", "lines", "delta", "s3")
AT_A_TIME = 50_000
"""Records of a file, a commit or an object."""
PATIENCE = 30.0
"""Seconds until moto answers."""


def run(place: Place, count: int) -> tuple[list[list[object]], list[Figure], dict[str, float]]:
    """Rows (destination, tasks, seconds, events/s, CPU s per M) of `count` events each; figures; facts."""
    place = replace(place, master="local[2]")
    rows: list[list[object]] = []
    figures, facts = [], dict[str, float]()
    with place.server(moto) as (store, pid):
        for kind in KINDS:
            seconds = []
            for tasks in place.numbers_of_tasks:
                took, cpu, beside = _delivered(place, kind, count, tasks, store, pid)
                seconds.append(took)
                rows.append([kind, "–", tasks, took, round(count / took), cpu / count * 1e6])
                facts[f"{kind}.{tasks}"] = count
                if kind == "s3":
                    facts[f"moto.{tasks}"] = beside
            if len(seconds) > 1:
                asked = None if kind == "s3" else 1.4
                figures.append(Figure(f"{kind}: 2 tasks / 1, of two cores", seconds[0] / seconds[1], "≥", asked, " ×"))
    return rows, figures, facts


def _delivered(
    place: Place, kind: str, count: int, tasks: int, store: dict[str, str], pid: int
) -> tuple[float, float, float]:
    """Seconds of the destination's stage, CPU of all, and of moto. Raises SystemExit unless everything is there."""
    prefix = f"{kind}-{tasks}/"
    plugin, settings = {
        "parquet": ("file", {"path": "out", "format": "parquet", "rows-per-file": AT_A_TIME}),
        "lines": ("file", {"path": "out", "format": "payload", "files": "many", "rows-per-file": AT_A_TIME}),
        "delta": ("delta", {"path": "table", "rows-per-commit": AT_A_TIME}),
        "s3": (
            "s3",
            {"bucket": BUCKET, "prefix": prefix, "format": "payload", "records-per-object": AT_A_TIME, **store},
        ),
    }[kind]
    delivery = {"order-by": "none", "parallelism": tasks}
    to = {"id": "to", "type": "destination", "plugin": plugin, "settings": settings, "delivery": delivery}
    place.pipeline(source(place.events(count)), to)
    with serving(place) as (_, _, redis_pid):
        ours = drive(place, redis_pid, "--beside", str(pid), spark=tasks > 1)
        broker = open_broker(PIPELINE)
        delivered = broker.deliveries.get("to").counters["delivered"]
        broker.close()
    if not delivered == (there := _there(place, kind, prefix, store)) == count:
        raise SystemExit(f"{kind}, {tasks} tasks: {count} events, {delivered} delivered, {there} are there")
    return ours["stages"]["destinations.to"], ours["cpu"], ours["cpu_beside"]


def _there(place: Place, kind: str, prefix: str, store: dict[str, str]) -> int:
    if kind == "parquet":
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(path).num_rows for path in (place.home / "out").glob("*.parquet"))
    if kind == "lines":
        return sum(path.read_bytes().count(b"\n") for path in (place.home / "out").glob("*.jsonl"))
    if kind == "delta":
        import deltalake

        return int(deltalake.DeltaTable(str(place.home / "table")).count())
    client = aws.client("s3", store)
    try:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
        return sum(client.get_object(Bucket=BUCKET, Key=key)["Body"].read().count(b"\n") for key in keys)
    finally:
        client.close()


@contextmanager
def moto() -> Iterator[tuple[dict[str, str], int]]:
    """Gives settings of a moto with the bucket, and its process id."""
    port = free_port()
    store: dict[str, Any] = {
        "endpoint-url": f"http://127.0.0.1:{port}",
        "region": "eu-central-1",
        "access-key-id": "bench",
        "secret-access-key": "a-secret-of-benchmarks",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _answering(store["endpoint-url"], process)
        client = aws.client("s3", store)
        client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": store["region"]})
        client.close()
        yield store, process.pid
    finally:
        process.terminate()
        process.wait()


def _answering(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(url, timeout=PATIENCE).close()
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("moto does not answer; pip install 'moto[s3,server]' says what is missing") from None
            time.sleep(0.05)
