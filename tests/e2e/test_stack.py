"""The whole thing under the real scheduler: a full run, an empty one, a kill, a clear, a broken file, a shutdown."""

from __future__ import annotations

import shutil
import signal
from typing import Any

import psutil
import pytest

from conduit_tasks.demo.account import account
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.progress import snapshot
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.stack.api import Api
from tests.conftest import DATA
from tests.e2e.conftest import Stack, conduit
from tests.faults.parts import UNTOLD, events, until
from tests.micro_batch.harness import here, payloads, run_once

pytestmark = pytest.mark.e2e
SUBMITS = "ConduitSubmitOperator"
ENDED = ("success", "failed")


def await_dag(api: Api, id: str) -> None:
    """Waits until Airflow has the DAG, and the scheduled run that it began by itself is over."""
    until(lambda: api.dag(id) and runs_of(api, id) and not api.active_runs(id), f"the DAG {id}, and its first run", 180)


def await_end(api: Api, id: str, run: str, seconds: float = 240.0) -> str:
    """The state a run ended in."""
    until(lambda: api.run(id, run)["state"] in ENDED, f"run {run} of {id} to end", seconds)
    return str(api.run(id, run)["state"])


def counters(pipeline: str, destination: str) -> dict[str, Any]:
    return next(d for d in snapshot(pipeline)["destinations"] if d["id"] == destination)


def runs_of(api: Api, id: str) -> list[str]:
    found = api.request("GET", f"/dags/{id}/dagRuns", params={"limit": 100, "order_by": "-run_after"})
    return [run["dag_run_id"] for run in found["dag_runs"]]


@pytest.mark.proves("C1", "C4", "C9", "T3", "T4", "T6", "I10")
def test_the_flights_run_to_completion_accounted_for_and_a_second_run_starts_no_jvm(stack: Stack) -> None:
    with stack.api() as api:
        # Given the demo's pipeline on a small extract of its data
        await_dag(api, "flights")
        shutil.copytree(DATA / "flights-extract", stack.home / "include" / "data" / "flights")
        # When it is run
        done = conduit("run", "flights")
        assert done.returncode == 0, done.stderr
        # Then everything read is acked, and every destination's own contents add up
        found = account("flights", stack.flights.url)
        assert found.faults == []
        assert found.read > 500
        assert all(line.delivered for line in found.destinations)
        # When it is run again
        done = conduit("run", "flights")
        assert done.returncode == 0, done.stderr
        # Then it ends at plan: everything after it is skipped
        tasks = api.tasks("flights", runs_of(api, "flights")[0])
        after_plan = {task["state"] for task in tasks if task["task_id"] != "plan"}
        assert after_plan == {"skipped"}
        assert sum(task["operator"] == SUBMITS for task in tasks) == 5
        assert account("flights", stack.flights.url) == found


@pytest.mark.proves("C9", "C12", "T4", "I3", "I4", "I10")
def test_two_triggered_runs_at_once_deliver_nothing_twice(stack: Stack) -> None:
    # Given events, when two runs are triggered at once
    rows = events(stack.home / "data" / "twice", 2_000, lane="twice")
    before = stack.events.summary()
    with stack.api() as api:
        await_dag(api, "twice")
        for run in ("one", "two"):
            api.trigger("twice", run, {})
        # Then both succeed
        assert [await_end(api, "twice", run) for run in ("one", "two")] == ["success", "success"]
    # And everything arrived, in order, nothing of it twice
    assert payloads(stack.home / "out/twice.jsonl") == rows
    after = stack.events.summary()
    assert after["accepted"] - before["accepted"] == 2_000
    assert after["duplicates"] == before["duplicates"]
    assert after["out_of_order"] == 0
    assert counters("twice", "web")["delivered"] == counters("twice", "file")["delivered"] == 2_000
    assert_acked("twice")


@pytest.mark.proves("C10", "T1", "T4", "I4")
def test_a_killed_airflow_worker_is_retried_and_the_retry_goes_on(stack: Stack) -> None:
    # Given a delivery under way
    before = stack.events.summary()
    with stack.api() as api:
        await_dag(api, "killed")
        sealed(stack, "killed", 1_000)
        api.trigger("killed", "run", {})
        until(lambda: stack.events.accepted() - before["accepted"] >= 200, "the middle of the delivery", 90)
        # When the Airflow worker dies with everything that it had started
        worker = worker_of(stack, "killed", "destinations.web")
        family = [worker, *worker.children(recursive=True)]
        for process in family:
            process.send_signal(signal.SIGKILL)
        psutil.wait_procs(family, timeout=10)
        assert counters("killed", "web")["delivered"] < 1_000
        # Then the task is tried again, and the run succeeds
        assert await_end(api, "killed", "run") == "success"
        task = next(t for t in api.tasks("killed", "run") if t["task_id"] == "destinations.web")
        assert (task["state"], task["try_number"]) == ("success", 2)
    # And nothing is missing, and at most the unconfirmed ones arrived twice
    after = stack.events.summary()
    assert after["accepted"] - before["accepted"] == 1_000
    assert after["duplicates"] - before["duplicates"] <= 16 + UNTOLD
    assert after["out_of_order"] == 0
    assert counters("killed", "web")["delivered"] == 1_000
    assert_acked("killed")


def sealed(stack: Stack, pipeline: str, count: int) -> None:
    """Events that are read and sealed: what is left for the run is to deliver them."""
    events(stack.home / "data" / pipeline, count, lane=pipeline)
    assert plan_run(pipeline, "before").micro_batch
    with opened(pipeline, "before") as context:
        read_source(context, "in", here, 10.0)


def worker_of(stack: Stack, pipeline: str, node: str) -> psutil.Process:
    """The process of Airflow's executor, a child of the scheduler, in which the task of a node runs."""
    for worker in stack.process("scheduler").children():
        for process in worker.children(recursive=True):
            if {"--pipeline", pipeline, "--node", node} <= set(command(process)):
                return worker
    raise AssertionError(f"no worker runs {node} of {pipeline}")


@pytest.mark.proves("T4", "T8")
def test_clearing_destinations_that_succeeded_sends_again_exactly_what_they_had_delivered(stack: Stack) -> None:
    # Given two runs that delivered 300 and 200 events
    with stack.api() as api:
        await_dag(api, "cleared")
        rows = events(stack.home / "data" / "cleared", 300, lane="cleared")
        run_once("cleared", "first")
        rows += events(stack.home / "data" / "cleared", 200, 300, lane="cleared")
        api.trigger("cleared", "second", {})
        assert await_end(api, "cleared", "second") == "success"
        assert payloads(stack.home / "out/cleared.jsonl") == rows
        before = stack.events.summary()
        # When the destinations of the second are cleared
        body = {
            "dry_run": False,
            "dag_run_id": "second",
            "task_ids": ["destinations.web", "destinations.file"],
            "only_failed": False,
            "reset_dag_runs": True,
        }
        api.request("POST", "/dags/cleared/clearTaskInstances", json=body)
        assert await_end(api, "cleared", "second") == "success"
    # Then those 200 went again, and nothing else
    after = stack.events.summary()
    assert after["duplicates"] - before["duplicates"] == 200
    assert after["accepted"] == before["accepted"]
    assert payloads(stack.home / "out/cleared.jsonl") == rows + rows[300:]
    # And they are counted apart
    for destination in ("web", "file"):
        found = counters("cleared", destination)
        assert (found["delivered"], found["redelivered"]) == (500, 200)
    assert_acked("cleared")


def test_a_broken_pipeline_file_is_an_import_error_and_the_good_dags_stay(stack: Stack) -> None:
    path = stack.home / "include" / "pipelines" / "broken.yaml"
    with stack.api() as api:
        await_dag(api, "flights")

        def errors() -> str:
            found = api.request("GET", "/importErrors")["import_errors"]
            return "\n".join(error["stack_trace"] for error in found)

        # When a broken file comes
        path.write_text('version: "2.2"\npipelines:\n  - id: broken\n    conectors: []\n')
        try:
            # Then Airflow shows what is wrong and where, and the other DAGs stay
            text = until(errors, "the import error", 60)
            assert "broken.yaml:4" in text
            assert "conectors" in text
            assert api.dag("broken") is None
            for good in ("flights", "twice"):
                about = api.dag(good)
                assert about is not None
                assert not about["is_stale"]
        finally:
            path.unlink()
        # And when it is gone, so is the error
        until(lambda: not errors(), "the import error to go", 60)


@pytest.mark.proves("C3", "C15")
def test_a_shutdown_delivers_and_acks_what_is_in_flight_and_leaves_nothing_running(stack: Stack) -> None:
    # Given a delivery under way
    before = stack.events.accepted()
    with stack.api() as api:
        await_dag(api, "drained")
        sealed(stack, "drained", 1_200)
        api.trigger("drained", "run", {})
        until(lambda: stack.events.accepted() - before >= 200, "the middle of the delivery", 90)
    running = [stack.process(name) for name in ("scheduler", "api-server", "redis")]
    assert stack.events.accepted() - before < 1_200
    # When the stack is shut down
    assert stack.down(60.0)
    # Then everything in flight had been delivered, once and in order, and acked
    assert stack.events.accepted() - before == 1_200
    assert stack.events.summary()["out_of_order"] == 0
    with stack.only_redis():
        assert_acked("drained")
        assert snapshot("drained")["status"] == "stopped"
    # And nothing of the stack runs any more
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in running)
    assert [p for p in psutil.process_iter() if {"--pipeline", "drained"} <= set(command(p))] == []


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_acked(pipeline: str) -> None:
    for source in snapshot(pipeline)["sources"]:
        assert source["acked"] == source["planned"], f"{source['id']} is not acked up to what was read"
