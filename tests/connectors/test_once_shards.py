"""Several tasks deliver to folders of files, S3, Delta and Iceberg (`delivery.parallelism`), killed before every
operation of a destination and of its confirmation: each record is there once (SEMANTICS C10, ADR 27)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.shards import Shards
from conduit_tasks.connectors import registry
from conduit_tasks.connectors.delta.connector import DeltaDestination
from conduit_tasks.connectors.file.folder import FileFolder
from conduit_tasks.connectors.file.folder_shards import FolderShard
from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.connectors.s3.connector import S3Destination
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.micro_batch import dividing, rebuild
from conduit_tasks.micro_batch.context import opened
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_once_killed import in_iceberg
from tests.micro_batch.endings import end_at, home_of, imported_for, lapse
from tests.micro_batch.harness import run_once, run_until_quiet, write_pipeline
from tests.micro_batch.test_whole import events
from tests.redis_server import RedisServer

pytestmark = pytest.mark.xdist_group("moto")

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: n}}
      - id: out
        type: destination
        plugin: PLUGIN
        settings: {SETTINGS}
        delivery: {timeout: 50ms, max-redeliveries: 100, order-by: ORDER, parallelism: TASKS}
"""
RECORDS = 8
THEN = ("the same file", "other tasks", "Redis has lost everything")
CONFIRMS = [(Shards, "divide"), (Shards, "confirm"), (Shards, "whole")]


def in_parquet(home: Path, server: str) -> list[int]:
    import pyarrow.parquet as pq

    paths = sorted((home / "out").rglob("*.parquet"), key=lambda path: path.name)
    assert not list((home / "out").rglob("*.tmp"))
    return [n for path in paths for n in pq.read_table(path, partitioning=None)["n"].to_pylist()]


def in_lines(home: Path, server: str) -> list[int]:
    assert not list((home / "out").glob("*.tmp"))
    return [json.loads(line)["n"] for path in (home / "out").glob("*.jsonl") for line in path.read_text().splitlines()]


def in_s3(home: Path, server: str) -> list[int]:
    client = client_of(server)
    try:
        found = client.list_objects_v2(Bucket="shards", Prefix=f"{home.name}/").get("Contents", ())
        data = [client.get_object(Bucket="shards", Key=each["Key"])["Body"].read() for each in found]
        return [json.loads(line)["n"] for each in data for line in each.splitlines()]
    finally:
        client.close()


def client_of(server: str) -> Any:
    from conduit_tasks.connectors import aws

    return aws.client("s3", json.loads(server))


def in_delta(home: Path, server: str) -> list[int]:
    import pyarrow.parquet as pq

    logs = sorted((home / "t/_delta_log").glob("*.json"))
    lines = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    return [
        n for line in lines if "add" in line for n in pq.read_table(home / "t" / line["add"]["path"])["n"].to_pylist()
    ]


TARGETS: dict[str, tuple[str, str, Callable[[Path, str], list[int]], Sequence[tuple[type, str]]]] = {
    "parquet": (
        "file",
        'path: out, format: parquet, rows-per-file: "PIECE", partition-by: colour',
        in_parquet,
        [(FolderShard, "open"), (FileFolder, "put")],
    ),
    "lines": (
        "file",
        'path: out, format: payload, files: many, rows-per-file: "PIECE"',
        in_lines,
        [(FolderShard, "open"), (FileFolder, "put")],
    ),
    "s3": (
        "s3",
        'bucket: shards, prefix: "NUMBER/", format: payload, records-per-object: "PIECE", MOTO',
        in_s3,
        [(S3Destination, "tidy"), (S3Destination, "_remove"), (S3Destination, "_put")],
    ),
    "delta": ("delta", 'path: t, rows-per-commit: "PIECE"', in_delta, [(DeltaDestination, "_commit")]),
    "iceberg": (
        "iceberg",
        'table: lake.t, catalog: {uri: "sqlite:///c.db", warehouse: wh}, rows-per-commit: "PIECE"',
        in_iceberg,
        [(IcebergDestination, "_commit")],
    ),
}
"""Name → plugin, settings, what is there, and operations at which it is killed."""


def written(home: Path, target: str, server: str, order: str, tasks: int, piece: int = 2) -> None:
    plugin, settings, _, _ = TARGETS[target]
    moto = ", ".join(f'{name}: "{value}"' for name, value in json.loads(server).items())
    text = PIPELINE.replace("PLUGIN", plugin).replace("SETTINGS", settings)
    text = text.replace("NUMBER", home.name).replace("MOTO", moto).replace("ORDER", order)
    text = text.replace("PIECE", str(piece))
    write_pipeline(home, "p", text.replace("TASKS", str(tasks)))


def run_and_die(target: str, at: int) -> None:
    """A run in which this process is killed before operation number `at`."""
    dividing.LEAST = 1
    end_at([*CONFIRMS, *TARGETS[target][3]], at)
    run_once("p", "killed")


def run_on(target: str, home: Path, server: str, forgotten: bool) -> list[int]:
    """Runs until nothing is new; returns what is there. Of a fork, whose libraries no later one has used."""
    dividing.LEAST = 1
    if forgotten:
        with opened("p", "rebuild") as context:
            found = rebuild.from_spool(context.pipeline, context.spool, context.broker)
            rebuild.apply(context.broker, found, replace=False)
    run_until_quiet("p")
    return TARGETS[target][2](home, server)


def killed_at_each_step(target: str, home: Path, redis_folder: Path, server: str) -> int:
    """Where nothing of the target was used before: what runs and dies is a fork. Returns the number of tries."""
    redis_server, number = RedisServer(redis_folder), 0

    def begun() -> Path:
        redis_server.flush()
        this = home_of(home, number, os.environ.__setitem__)
        written(this, target, server, "none", 2)
        events(this / "data", "a.jsonl", 0, RECORDS)
        return this

    imported_for(partial(run_on, target, begun(), server, False))
    while True:
        number += 1
        this = begun()
        try:
            in_child(run_and_die, target, number)
            return number
        except ChildDied as died:
            assert died.how == "signal 9"  # noqa: PT017 - or it has ended
        lapse()
        # A shard has about six operations: each of them is followed by each of these.
        then = THEN[(number + number // 6) % len(THEN)]
        if then == "Redis has lost everything":
            redis_server.flush()
        if then != "the same file":
            written(this, target, server, "key", 1 + number % 3, piece=3)
        found = sorted(in_child(run_on, target, this, server, then == "Redis has lost everything"))
        if target in ("delta", "iceberg") and then == "Redis has lost everything":
            # A commit cannot be taken back, and other tasks do not know how far these had come.
            assert max(Counter(found).values()) <= 2, f"operation {number}"
            found = sorted(set(found))
        assert found == list(range(RECORDS)), f"operation {number}, then {then}"


@pytest.fixture(scope="module")
def server(moto_server: MotoServer) -> str:
    if not moto_server.running:
        moto_server.start()
    client = moto_server.client("s3")
    client.create_bucket(Bucket="shards", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    client.close()
    return json.dumps(moto_server.settings)


@pytest.mark.proves("C10")
@pytest.mark.parametrize("target", list(TARGETS))
def test_a_kill_at_any_step_of_several_tasks_leaves_every_record_once(
    home: Path, redis_server: RedisServer, server: str, target: str
) -> None:
    """Given two tasks, and a death before any operation of theirs, then every record is there once when the next run
    has ended: with the same file; with one that asks for another order, one to three tasks and larger pieces; and
    with Redis empty (Delta and Iceberg: once or twice then)."""
    # A test before this one may have used a library that no fork survives.
    forks = registry.destination_class(TARGETS[target][0]).forks
    tries = in_child(killed_at_each_step, target, home, redis_server.folder, server, forks=forks)
    assert tries > 10, "the kills cover both tasks"
