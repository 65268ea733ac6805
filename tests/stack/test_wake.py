"""Wake-ups under the real scheduler and triggerer: what is new starts a run long before its time, and what nobody woke
for is taken by the next timed one."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

import psutil
import pytest

from conduit_tasks.stack import gateway, processes
from conduit_tasks.stack.layout import Layout
from tests.stack.conftest import PATIENCE, Stack, until
from tests.stack.test_stack import below, kill

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

PIPELINE = """\
version: "2.2"
pipelines:
  - id: woken
    schedule: {schedule}
    {more}
    connectors:
      - {{id: web, type: source, plugin: gateway, settings: {{auth: none}}}}
      - {{id: lines, type: source, plugin: file, settings: {{path: "in/woken/*.jsonl"}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/woken.jsonl, format: payload}}}}
"""


WOKEN = ("asset_triggered", "operator_triggered")
"""Kinds of runs that no schedule started: the asset did, or the run before, which left something that need not wait."""


def write(stack: Stack, schedule: str, more: str) -> None:
    side = stack.home / "woken.side"
    side.write_text(PIPELINE.format(schedule=schedule, more=more))
    side.rename(stack.home / "include" / "pipelines" / "woken.yaml")


def delivered(stack: Stack, id: str = "woken") -> str:
    out = stack.home / "out" / f"{id}.jsonl"
    return out.read_text() if out.exists() else ""


def runs(stack: Stack, kind: str = "", id: str = "woken") -> list[dict[str, Any]]:
    """Of a kind, newest first."""
    with stack.api() as api:
        found = api.request("GET", f"/dags/{id}/dagRuns", params={"order_by": "-run_after", "limit": 100})
    return [run for run in found["dag_runs"] if kind in ("", run["run_type"])]


def reader(stack: Stack, source: str, after: str = "") -> dict[str, Any]:
    """The newest run whose read of this source has ended, another than `after`; a run delivers before."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        with stack.api() as api:
            for run in runs(stack):
                states = {task["task_id"]: task["state"] for task in api.tasks("woken", run["dag_run_id"])}
                if states.get(f"sources.{source}") == "success":
                    found.append(run)
                    return bool(run["dag_run_id"] != after)
        return False

    until(look)
    return found[-1]


def days_to_come(dag: Any) -> float:
    """Until its next timed run."""
    return (datetime.fromisoformat(dag["next_dagrun_run_after"]) - datetime.now(UTC)).total_seconds() / 86_400


@pytest.fixture
def woken(stack: Stack) -> Iterator[Stack]:
    """A stack with a pipeline that is due once a year and woken meanwhile. What it added is gone after, for the others
    share the stack."""
    (stack.home / "in" / "woken").mkdir(parents=True)
    write(stack, '"@yearly"', "wake: {look: 1s, pause: 2s}")
    stack.conduit("stack", "up", "--timeout", str(PATIENCE))
    with stack.lent("woken"):
        with stack.api() as api:
            # Airflow makes up for the last time it was due before it knew of the DAG.
            until(lambda: api.dag("woken") and runs(stack, "scheduled"))
            until(lambda: not api.active_runs("woken"))
        yield stack
    state = stack.state
    processes.stop(state.processes.pop(gateway.NAME), timeout=60)
    state.gateway_url = ""
    state.save(Layout(stack.home))


@pytest.mark.proves("T2")
def test_what_is_new_starts_a_run_and_what_nobody_woke_for_is_taken_by_the_next_timed_one(woken: Stack) -> None:
    # When files are dropped, two at once
    woken.write("woken", "a", 1, 2)
    woken.write("woken", "b", 3, 3)
    until(lambda: delivered(woken).count("\n") == 3)
    # Then the asset started the run that delivered them
    assert delivered(woken) == '{"n": 1}\n{"n": 2}\n{"n": 3}\n'
    assert reader(woken, "lines")["run_type"] in WOKEN

    # When an event is posted
    event = urllib.request.Request(
        f"{woken.state.gateway_url}/ingest/woken/web", b'{"n": 4}', {"content-type": "application/json"}
    )
    with urllib.request.urlopen(event, timeout=PATIENCE) as answer:
        assert answer.status == 202
    until(lambda: delivered(woken).count("\n") == 4)
    # Then it is the same, and nobody is woken for nothing
    assert reader(woken, "web")["run_type"] in WOKEN
    assert len(runs(woken, "scheduled")) == 1
    with woken.api() as api:
        until(lambda: not api.active_runs("woken"))
    assert len(runs(woken, "asset_triggered")) < 8

    # Given a triggerer that was killed, so that the event of another file is lost
    triggerer = psutil.Process(woken.state.processes["triggerer"].pid)
    kill([*below(triggerer), triggerer])
    triggerer.wait(PATIENCE)
    with woken.api() as api:
        # What it told before, as of an event that was not delivered yet, may start a run still: it would take the file
        asked = "/dags/woken/assets/queuedEvents"
        until(lambda: not api.request("GET", asked)["total_entries"] and not api.active_runs("woken"))
    last = reader(woken, "lines")["dag_run_id"]
    woken.write("woken", "c", 5, 5)
    # When its time comes (here by a changed file: a year is long)
    write(woken, "10s", "data-intervals: true\n    wake: {look: 1s, pause: 2s}")
    until(lambda: delivered(woken).count("\n") == 5)
    # Then the timed run took it; it carries its data interval, which nothing of it looks at
    took = reader(woken, "lines", after=last)
    assert took["run_type"] == "scheduled"
    begin, end = (datetime.fromisoformat(took[f"data_interval_{side}"]) for side in ("start", "end"))
    assert (end - begin).total_seconds() == 10

    # And a triggerer that is there again goes on where the other one was
    write(woken, '"@yearly"', "wake: {look: 1s, pause: 2s}")
    with woken.api() as api:
        # No timed run is left that could take the next file
        until(lambda: days_to_come(api.dag("woken")) > 1)
        until(lambda: not api.active_runs("woken"))
    before = runs(woken, "asset_triggered")[0]["dag_run_id"]
    woken.conduit("stack", "up", "--timeout", str(PATIENCE))
    files = count(6)

    def wakes() -> bool:
        """Whether a new file started a run: the scheduler may still start a timed one by the schedule of before."""
        n = next(files)
        woken.write("woken", f"d{n}", n, n)
        until(lambda: delivered(woken).count("\n") == n)
        return bool(runs(woken, "asset_triggered")[0]["dag_run_id"] != before)

    until(wakes)
