"""How far reading may be ahead of the slowest destination."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.micro_batch.harness import here, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events


def read_all(runs: int) -> list[int]:
    """Plans and reads `runs` times and delivers nothing; the records of each micro-batch that was opened."""
    for number in range(runs):
        plan_run("p", f"run-{number}")
        with opened("p", f"run-{number}") as context:
            read_source(context, "in", here, 5.0)
    broker = state("p")
    totals = [broker.micro_batch(m).total for m in range(1, broker.latest_sealed() + 1)]
    broker.close()
    return totals


@pytest.mark.proves("C13", "B2", "I7")
def test_by_default_one_micro_batch_is_in_flight(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 200)
    assert read_all(4) == [40]


@pytest.mark.proves("C13", "I7")
def test_a_lag_budget_is_read_up_to_the_last_record_and_not_past_it(home: Path) -> None:
    write_pipeline(home, "p", TWO.replace("    connectors:", "    lag-budget: {records: 90}\n    connectors:"))
    events(home / "data", "a.jsonl", 0, 200)
    assert read_all(6) == [40, 40, 10]


@pytest.mark.proves("I7")
def test_a_lag_budget_below_one_micro_batch_bounds_that_too(home: Path) -> None:
    write_pipeline(home, "p", TWO.replace("    connectors:", "    lag-budget: {records: 15}\n    connectors:"))
    events(home / "data", "a.jsonl", 0, 200)
    assert read_all(3) == [15]
