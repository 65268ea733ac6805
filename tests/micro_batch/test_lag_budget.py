"""How far reading may be ahead of the slowest destination."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.micro_batch.harness import here, run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events


def read_all(runs: int) -> list[int]:
    """Plans and reads `runs` times and delivers nothing; the records of each micro-batch that was opened."""
    for number in range(runs):
        plan_run("p", f"run-{number}")
        with opened("p", f"run-{number}") as context:
            read_source(context, "in", here, 5.0)
    broker = state("p")
    totals = [broker.micro_batches.get(m).total for m in range(1, broker.micro_batches.latest_sealed() + 1)]
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


@pytest.mark.proves("C13", "I7")
def test_a_lag_budget_in_bytes_stops_reading_once_that_much_waits(home: Path) -> None:
    # Given micro-batches of 40 records, and a budget of one and a half of them in bytes
    write_pipeline(home, "p", TWO.replace("    connectors:", "    lag-budget: {records: 1000}\n    connectors:"))
    events(home / "data", "a.jsonl", 0, 400)
    assert read_all(1) == [40]
    broker = state("p")
    one = broker.deliveries.backlog(["all"]).bytes
    broker.close()
    budget = one * 3 // 2
    write_pipeline(home, "p", TWO.replace("    connectors:", f"    lag-budget: {{bytes: {budget}}}\n    connectors:"))
    # When it is read again and again, and nothing is delivered
    read_all(8)
    # Then what waits is the budget, and at most what a file weighs more than its records
    broker = state("p")
    waiting, opened_last = broker.deliveries.backlog(["all"]), broker.micro_batches.unsealed()
    broker.close()
    assert opened_last is None
    assert waiting.bytes >= budget
    assert waiting.bytes <= budget + 2 * one
    assert 40 < waiting.records < 400


@pytest.mark.proves("C13", "I7")
def test_a_lag_budget_in_time_stops_reading_while_something_older_waits(home: Path) -> None:
    # Given something that waits for a second and a budget of half of that
    write_pipeline(home, "p", TWO.replace("    connectors:", "    lag-budget: {age: 500ms}\n    connectors:"))
    events(home / "data", "a.jsonl", 0, 400)
    assert read_all(1) == [40]
    broker = state("p")
    until = time.monotonic() + 240
    while broker.deliveries.backlog(["all"]).age(broker.access.now()) <= 0.5:
        assert time.monotonic() < until
        time.sleep(0.05)
    broker.close()
    # Then nothing more is read until it is delivered
    assert read_all(3) == [40]
    run_once("p", "delivers")
    assert len(read_all(1)) == 2
