"""`guarantee: effectively-once`, killed before every operation of a destination and of its confirmation: each record is
there once, in order (SEMANTICS B8, C10). S3, Kafka and PostgreSQL have theirs beside the servers that they need."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.connectors import registry
from conduit_tasks.delivery.isolated import ChildDied, in_child
from tests.connectors.test_sql import execute
from tests.micro_batch.endings import end_at, home_of, imported_for, lapse
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, write_pipeline
from tests.micro_batch.test_whole import events
from tests.redis_server import RedisServer

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 8}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - id: out
        type: destination
        plugin: PLUGIN
        settings: SETTINGS
        delivery: {timeout: 50ms, max-redeliveries: 100, guarantee: effectively-once}
"""
RECORDS = 10


def in_file(home: Path, server: Any) -> list[int]:
    return [each["n"] for each in payloads(home / "out.jsonl")] if (home / "out.jsonl").exists() else []


def in_files(home: Path, server: Any) -> list[int]:
    paths = sorted((home / "out").glob("*.jsonl"))
    return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]


def in_parquet(home: Path, server: Any) -> list[int]:
    import pyarrow.parquet as pq

    return [n for path in sorted((home / "out").glob("*.parquet")) for n in pq.read_table(path)["n"].to_pylist()]


def in_delta(home: Path, server: Any) -> list[int]:
    import pyarrow.parquet as pq

    lines = [line for path in sorted((home / "t/_delta_log").glob("*.json")) for line in path.read_text().splitlines()]
    logs = [json.loads(line) for line in lines]
    added = [log["add"]["path"] for log in logs if "add" in log]
    return [n for path in added for n in pq.read_table(home / "t" / path)["n"].to_pylist()]


def in_iceberg(home: Path, server: Any) -> list[int]:
    """Numbers in the order of the commits."""
    import pyarrow.parquet as pq
    from pyiceberg.catalog import load_catalog

    with load_catalog("default", uri=f"sqlite:///{home}/c.db") as catalog:
        files = catalog.load_table("lake.t").inspect.entries().sort_by("sequence_number")["data_file"].to_pylist()
        paths = [file["file_path"].removeprefix("file://") for file in files]
    return [n for path in paths for n in pq.read_table(path, partitioning=None)["n"].to_pylist()]


def in_table(home: Path, server: Any) -> list[int]:
    return [n for (n,) in execute(f"sqlite:///{home}/t.db", "SELECT n FROM t")]


def in_stream(home: Path, server: Any) -> list[int]:
    client = redis.Redis(unix_socket_path=str(server.socket))
    try:
        return [int(json.loads(fields[b"data"])["n"]) for _, fields in client.xrange("out")]
    finally:
        client.close()


TARGETS: dict[str, tuple[str, str, Callable[[Path, Any], list[int]]]] = {
    "file": ("file", "{path: out.jsonl, format: payload}", in_file),
    "parquet": ("file", '{path: out, format: parquet, rows-per-file: "5"}', in_parquet),
    "lines": ("file", '{path: out, format: payload, files: many, rows-per-file: "5"}', in_files),
    "delta": ("delta", '{path: t, rows-per-commit: "5"}', in_delta),
    "iceberg": (
        "iceberg",
        '{table: lake.t, catalog: {uri: "sqlite:///c.db", warehouse: wh}, rows-per-commit: "5"}',
        in_iceberg,
    ),
    "sql": (
        "sql",
        '{url: "sqlite:///t.db", table: t, mode: append, chunk: "5", columns: "n:int=.Payload.After.n"}',
        in_table,
    ),
    "redis": ("redis", '{url: "URL", stream: out}', in_stream),
}
"""Name → plugin, settings, and what is there."""


def run_and_die(plugin: str, at: int) -> None:
    """Runs in which this process is killed before operation number `at`."""
    cls = registry.destination_class(plugin)
    end_at([(cls, "open"), (cls, "write"), (Deliveries, "confirm")], at)
    for number in range(2):
        run_once("p", f"killed-{number}")


def run_on(target: str, home: Path, server: RedisServer) -> list[int]:
    """Runs until nothing is new; returns what is there. Of a fork, whose libraries no later one has used."""
    run_until_quiet("p")
    return TARGETS[target][2](home, server)


def killed_at_each_step(target: str, home: Path, redis_folder: Path) -> None:
    """Where nothing of the target was used before: what runs and dies is a fork."""
    plugin, settings, _ = TARGETS[target]
    redis_server = RedisServer(redis_folder)

    def begun(number: int) -> Path:
        redis_server.flush()
        this = home_of(home, number, os.environ.__setitem__)
        text = PIPELINE.replace("PLUGIN", plugin).replace("SETTINGS", settings.replace("URL", redis_server.url))
        write_pipeline(this, "p", text)
        events(this / "data", "a.jsonl", 0, RECORDS)
        return this

    imported_for(partial(run_on, target, begun(0), redis_server))
    number = 0
    while True:
        number += 1
        this = begun(number)
        try:
            in_child(run_and_die, plugin, number)
            break
        except ChildDied as died:
            assert died.how == "signal 9"  # noqa: PT017 - or it has ended
            lapse()
            assert in_child(run_on, target, this, redis_server) == list(range(RECORDS)), f"operation {number}"
    assert number > 4, "the kills cover the whole life of a micro-batch"


@pytest.mark.proves("B8", "C10", "C9")
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_kill_at_any_step_leaves_every_record_once_and_in_order(
    home: Path, redis_server: RedisServer, target: str
) -> None:
    # A test before this one may have used a library that no fork survives.
    forks = registry.destination_class(TARGETS[target][0]).forks
    in_child(killed_at_each_step, target, home, redis_server.folder, forks=forks)
