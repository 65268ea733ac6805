"""One destination stopped and started alone: the others flow until the lag budget is used up (SEMANTICS X1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from tests.micro_batch.harness import payloads, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events

ISOLATED = TWO.replace("    connectors:", "    isolate: true\n    lag-budget: {records: 100}\n    connectors:").replace(
    "\n        trigger: {filters: [{exact: {subject: red}}]}", ""
)


def conduit(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.proves("X1", "C13", "I7")
def test_a_destination_stopped_alone_keeps_its_cursor_while_others_flow_within_the_lag_budget(home: Path) -> None:
    # Given a pipeline that has delivered 30 records to both
    write_pipeline(home, "p", ISOLATED)
    rows = events(home / "data", "a.jsonl", 0, 30)
    run_until_quiet("p")
    # When one destination is stopped, and more comes than the lag budget holds
    assert "red: stopped" in conduit("stop", "p", "--destination", "red").output
    rows += events(home / "data", "a.jsonl", 30, 200)
    runs = run_until_quiet("p")
    # Then the other one gets as much as the budget allows, and the stopped one nothing
    assert payloads(home / "out/all.jsonl") == rows[:130]
    assert payloads(home / "out/red.jsonl") == rows[:30]
    # And what holds up the source is said, and the status shows it
    assert "red stopped, and the lag budget is used up" in runs[-1]["plan"]
    broker = state("p")
    assert (broker.deliveries.get("red").cursor, broker.lifecycle.status().status) == (1, "running")
    broker.close()
    (line,) = [line for line in conduit("status", "p").output.splitlines() if line.startswith("red")]
    assert "stopped" in line
    # When it is started, then it catches up in order, and everything goes on
    assert conduit("start", "p", "--destination", "red").exit_code == 0
    run_until_quiet("p")
    assert payloads(home / "out/red.jsonl") == payloads(home / "out/all.jsonl") == rows


@pytest.mark.proves("X1", "C15")
def test_a_graceful_stop_does_not_wait_for_a_destination_that_is_stopped_itself(home: Path) -> None:
    write_pipeline(home, "p", ISOLATED)
    rows = events(home / "data", "a.jsonl", 0, 30)
    conduit("stop", "p", "--destination", "red")
    run_until_quiet("p")
    done = conduit("stop", "p", "--deadline", "5")
    assert (done.exit_code, "p: stopped" in done.output) == (0, True), done.output
    assert conduit("start", "p").exit_code == 0, "starts all"
    run_until_quiet("p")
    assert payloads(home / "out/red.jsonl") == rows


def test_only_a_known_destination_of_an_isolated_pipeline_can_be_stopped_alone(home: Path) -> None:
    write_pipeline(home, "p", ISOLATED)
    write_pipeline(home, "q", TWO.replace("id: p", "id: q"))
    assert "has no destination blue; it has all, red" in str(conduit("stop", "p", "--destination", "blue").exception)
    assert "Set `isolate: true`" in str(conduit("stop", "q", "--destination", "red").exception)
