"""`parallelism: auto`: how many tasks deliver a micro-batch is chosen when it is begun, and kept (ADR 27)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.state import Division
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.dividing import division_of
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.sending import leased
from conduit_tasks.settings import forget
from tests.micro_batch.harness import here, run_once, state, write_pipeline
from tests.micro_batch.test_whole import events

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: n}}
      - id: out
        type: destination
        plugin: file
        settings: {path: out, format: parquet}
        delivery: {order-by: ORDER, parallelism: auto}
"""


@pytest.fixture
def cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where no work is small, as on a cluster."""
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "0")
    forget()
    return home


def begun(parallelism: Callable[[], int]) -> Division | None:
    """How the micro-batch behind the cursor is divided."""
    with opened("p", "run") as context:
        to = context.pipeline.destination("out")
        with leased(context, to) as lease:
            return division_of(context, to, lease, context.broker.deliveries.get("out"), parallelism)


def sealed(home: Path, order: str = "none", count: int = 3_000) -> None:
    write_pipeline(home, "p", PIPELINE.replace("ORDER", order))
    events(home / "data", "a.jsonl", 0, count)
    plan_run("p", "run")
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)


def unasked() -> int:
    raise AssertionError("Spark would be started for it")


def test_the_number_of_tasks_is_what_spark_has_when_the_micro_batch_is_begun_and_is_kept(cluster: Path) -> None:
    """Given a Spark of three cores, and one of five by the next attempt, then three tasks deliver it all."""
    sealed(cluster)
    first = begun(lambda: 3)
    assert first is not None
    assert first.count == 3
    again = begun(unasked)
    assert again is not None
    assert again.count == 3
    jobs: list[int] = []

    def run_all(function: Any, pieces: Any) -> list[Any]:
        jobs.append(len(pieces))
        return here(function, pieces)

    run_once("p", "next", run_all=run_all)
    assert jobs == [3]
    broker = state("p")
    assert (broker.deliveries.get("out").cursor, broker.deliveries.get("out").counters["delivered"]) == (1, 3_000)
    broker.close()


def test_many_cores_are_not_all_used(cluster: Path) -> None:
    sealed(cluster)
    division = begun(lambda: 200)
    assert division is not None
    assert division.count == 16


def test_no_more_tasks_are_begun_than_there_are_records_for(cluster: Path) -> None:
    sealed(cluster, count=450)
    division = begun(lambda: 16)
    assert division is not None
    assert division.count == 4


def test_where_the_order_allows_one_task_or_spark_has_one_core_one_delivers(cluster: Path) -> None:
    """Given one source partition, whose order is kept, then nobody is asked."""
    sealed(cluster, "partition")
    assert begun(unasked) is None
    write_pipeline(cluster, "p", PIPELINE.replace("ORDER", "none"))
    assert begun(lambda: 1) is None


def test_for_a_small_micro_batch_no_spark_is_started(home: Path) -> None:
    sealed(home)
    assert begun(unasked) is None
