"""`<pipeline>.resend` under the real scheduler: Airflow's own backfills, in all their ways (SEMANTICS X3)."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.stack.api import ApiError
from conduit_tasks.stack.environment import component_environment
from conduit_tasks.stack.layout import Layout
from tests.stack.conftest import PATIENCE, Stack, find_n, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

AIRFLOW = str(Path(sys.executable).parent / "airflow")
DAG = "history.resend"


def feed(stack: Stack, name: str, first: int, last: int) -> None:
    """Four records a day from 2013-03-01 on, with n = 0, 1, …"""
    start = datetime(2013, 3, 1, tzinfo=UTC)
    rows = [{"n": n, "t": (start + timedelta(hours=6 * n)).isoformat()} for n in range(first, last + 1)]
    side = stack.home / "in" / "history" / f"{name}.side"
    side.write_text("".join(json.dumps(row) + "\n" for row in rows))
    side.rename(side.with_suffix(".jsonl"))


def got(stack: Stack, name: str) -> list[tuple[int, str]]:
    """(n, run of the replay) of what a destination has, in order."""
    rows = map(json.loads, (stack.home / "out" / f"{name}.jsonl").read_text().splitlines())
    return [(find_n(row), row["metadata"].get("conduit.replay", "")) for row in rows]


def numbers(stack: Stack, name: str) -> list[int]:
    return [n for n, _ in got(stack, name)]


def backfill(stack: Stack, first: str, last: str, what: str, behaviour: str, *, by_command: bool = False) -> None:
    """Has Airflow backfill days, to the destination `late`, as its UI does or by `airflow backfill create`; until
    all its runs have ended well."""
    conf = {"destinations": ["late"], "what": what}
    with stack.api() as api:
        if by_command:
            _create(stack, first, last, json.dumps(conf), behaviour)
        else:
            asked = {"dag_id": DAG, "from_date": f"{first}T00:00:00Z", "to_date": f"{last}T00:00:00Z"}
            asked |= {"dag_run_conf": conf, "reprocess_behavior": behaviour, "max_active_runs": 3}
            api.request("POST", "/backfills", json=asked)
        _ended(stack)
        runs = api.request("GET", f"/dags/{DAG}/dagRuns")["dag_runs"]
    assert {run["state"] for run in runs} == {"success"}, runs


def _create(stack: Stack, first: str, last: str, conf: str, behaviour: str) -> None:
    command = [
        *(AIRFLOW, "backfill", "create", "--dag-id", DAG, "--from-date", first, "--to-date", last),
        *("--dag-run-conf", conf, "--reprocess-behavior", behaviour, "--max-active-runs", "3"),
    ]
    state = stack.state
    environment = component_environment(Layout(stack.home), state.api_url, state.redis_url)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _ended(stack: Stack) -> None:
    with stack.api() as api:
        until(lambda: not api.active_runs(DAG), 2 * PATIENCE)
        # Else Airflow takes its time to see that a backfill has ended, and until then refuses the next one.
        for one in api.request("GET", "/backfills", params={"dag_id": DAG})["backfills"]:
            if one["completed_at"] is None:
                try:
                    api.request("PUT", f"/backfills/{one['id']}/cancel")
                except ApiError as error:
                    if error.status != 409:  # it has seen so meanwhile
                        raise


def did(stack: Stack, run: str) -> dict[str, str]:
    """Task → state, of one run."""
    with stack.api() as api:
        return {task["task_id"]: task["state"] for task in api.tasks(DAG, run)}


def live(stack: Stack) -> Any:
    said = json.loads(stack.conduit("status", "history", "--format", "json"))
    return [(d["id"], d["cursor"]) for d in said["destinations"]], said["sealed"]


@pytest.mark.proves("X3")
def test_airflows_backfills_replay_history_to_a_late_joiner(stack: Stack) -> None:
    # Given four days that a destination missed, because it was added only then
    stack.pipeline("history", "plugin: file, settings: {path: out/history.jsonl}", "event-time: .Payload.After.t")
    file = stack.home / "include" / "pipelines" / "history.yaml"
    file.write_text(file.read_text().replace('*.jsonl"', '*.jsonl", format: jsonl'))
    feed(stack, "a", 0, 15)
    stack.run("history")
    late = "      - {id: late, type: destination, plugin: file, settings: {path: out/late.jsonl}}\n"
    file.write_text(file.read_text() + late)
    with stack.api() as api:
        for dag in ("history", DAG):
            found = f"/dags/{dag}/tasks"
            until(lambda: "destinations.late" in json.dumps(api.request("GET", found, absent=True)), PATIENCE)  # noqa: B023
    feed(stack, "b", 16, 17)
    stack.run("history")
    assert numbers(stack, "late") == [16, 17]
    before = live(stack)

    # When three days are filled in side by side, they go one after the other
    backfill(stack, "2013-03-01", "2013-03-03", "missing", "none", by_command=True)
    assert numbers(stack, "late") == [16, 17, *range(12)]
    marks = [run for _, run in got(stack, "late")]
    assert marks[:2] == ["", ""]
    assert len(set(marks[2:])) == 3
    assert all(run.startswith("backfill__2013-03-0") for run in marks[2:])

    # And only the destination that was chosen has anything to do; a trigger without an interval redrives (X2)
    ends = {"plan": "success", "destinations.late": "success", "destinations.out": "skipped", "redrive": "skipped"}
    assert did(stack, marks[-1]) == ends
    with stack.api() as api:
        found = api.request("GET", f"/dags/{DAG}/dagRuns/{marks[-1]}/taskInstances/plan/xcomEntries/return_value")
        assert found["value"]["chosen"] == 4
        api.trigger(DAG, "letters", {})
        until(lambda: not api.active_runs(DAG), PATIENCE)
        assert api.run(DAG, "letters")["state"] == "success"
    skipped = {"destinations.late": "skipped", "destinations.out": "skipped"}
    assert did(stack, "letters") == {"plan": "success", "redrive": "success", **skipped}

    # Then `none` leaves alone what there is
    backfill(stack, "2013-03-01", "2013-03-04", "all", "none")
    assert numbers(stack, "late")[14:] == [12, 13, 14, 15]

    # And `completed` sends a day again that had succeeded
    backfill(stack, "2013-03-01", "2013-03-01", "all", "completed")
    assert numbers(stack, "late")[18:] == [0, 1, 2, 3]

    # And `failed` only the one that failed
    with stack.api() as api:
        runs = api.request("GET", f"/dags/{DAG}/dagRuns")["dag_runs"]
        (second,) = [r["dag_run_id"] for r in runs if (r["data_interval_start"] or "").startswith("2013-03-02")]
        api.request("PATCH", f"/dags/{DAG}/dagRuns/{second}", json={"state": "failed"})
    backfill(stack, "2013-03-01", "2013-03-04", "all", "failed")
    assert numbers(stack, "late")[22:] == [4, 5, 6, 7]

    # And neither the other destination nor a live position noticed anything; the next live record follows
    assert numbers(stack, "history") == list(range(18))
    assert live(stack) == before
    feed(stack, "c", 18, 18)
    stack.run("history")
    assert numbers(stack, "late")[26:] == [18]
