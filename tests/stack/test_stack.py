"""The embedded stack as a user has it: real scheduler, real Spark, real Redis. Every test has a pipeline of its own."""

from __future__ import annotations

import json
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

from conduit_tasks.spark.remote import Address
from conduit_tasks.spark.server import CLASS
from conduit_tasks.stack import processes
from conduit_tasks.stack.layout import Layout
from tests.stack.conftest import PATIENCE, Receiver, Stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


def http(receiver: Receiver, timeout: str = "20s") -> str:
    return f'plugin: http, settings: {{url: "{receiver.url}"}}, delivery: {{timeout: {timeout}}}'


@pytest.mark.slow
def test_up_again_changes_nothing(stack: Stack) -> None:
    before = stack.state

    said = stack.conduit("stack", "up")

    assert stack.state == before
    assert "starting" not in said
    assert stack.conduit("stack", "status").count("running") == 6
    for path in (Layout(stack.home).state_file, Layout(stack.home).secrets_file, Layout(stack.home).passwords_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.proves("C10", "C11")
def test_a_run_delivers_everything_and_the_next_one_starts_no_jvm(stack: Stack) -> None:
    stack.pipeline("whole", "plugin: file, settings: {path: out/whole.jsonl, format: payload}")
    stack.write("whole", "a", 1, 500)

    said = stack.run("whole")

    assert (stack.home / "out" / "whole.jsonl").read_text() == "".join(f'{{"n": {n}}}\n' for n in range(1, 501))
    assert "destinations.out" in said
    assert "success" in said

    stack.run("whole")

    assert stack.states("whole") == {
        "plan": "success",
        **dict.fromkeys(("sources.lines", "fan_in", "fan_out", "destinations.out", "acks.lines", "end"), "skipped"),
    }


@pytest.mark.slow
def test_a_broken_file_shows_as_an_import_error_and_breaks_nothing_else(stack: Stack) -> None:
    stack.pipeline("sound", "plugin: log")
    broken = stack.home / "include" / "pipelines" / "broken.yaml"
    broken.write_text('version: "2.2"\npipelines:\n  - id: broken\n    shedule: 30s\n')
    # Airflow reads this file when it has changed, else in its own time.
    errors = stack.home / "dags" / "conduit_errors.py"
    errors.touch()

    with stack.api() as api:

        def said() -> str:
            return str(api.request("GET", "/importErrors")["import_errors"])

        until(lambda: "broken.yaml:4" in said())
        assert "shedule" in said()
        until(lambda: (api.dag("sound") or {}).get("is_stale") is False)

        broken.unlink()
        errors.touch()
        until(lambda: "broken.yaml" not in said())


@pytest.mark.proves("C3")
def test_a_run_marked_failed_takes_its_driver_along_and_the_next_one_goes_on(stack: Stack, receiver: Receiver) -> None:
    # Given a destination that holds its sender up
    receiver.gate.clear()
    stack.pipeline("held", http(receiver))
    stack.write("held", "a", 1, 20)
    stack.run("held", "--no-wait")
    until(lambda: receiver.got)
    assert drivers("held")

    # When the run is marked failed
    with stack.api() as api:
        api.request("PATCH", f"/dags/held/dagRuns/{stack.last_run('held')}", json={"state": "failed"})

    # Then nothing of it goes on sending, no status changed, and the next run delivers everything, in order
    until(lambda: not drivers("held"))
    found = json.loads(stack.conduit("status", "held", "--format", "json"))
    # On a slow machine the held send may have failed by its timeout before
    assert found["status"] in ("running", "recovering"), found
    sent = len(receiver.got)
    receiver.gate.set()
    stack.run("held")
    assert receiver.got[sent:] == list(range(1, 21))


@pytest.mark.proves("C10", "T1", "T4", "I4")
def test_a_killed_airflow_worker_is_tried_again_and_goes_on_from_the_cursor(stack: Stack, receiver: Receiver) -> None:
    # Given a delivery under way, which stays in the middle
    receiver.stop_at = 101
    stack.pipeline("killed", http(receiver))
    stack.write("killed", "a", 1, 400)
    stack.run("killed", "--no-wait")
    until(lambda: len(receiver.got) > 100)

    # When the Airflow worker dies, with everything that it had started
    worker = worker_of(stack, "killed")
    kill([worker, *below(worker)])
    sent = len(receiver.got)
    receiver.gate.set()

    # Then the same run tries the task again, goes on, and succeeds; nothing is missing or out of order
    run = stack.last_run("killed")
    with stack.api() as api:
        until(lambda: api.run("killed", run)["state"] in ("success", "failed"))
        task = next(t for t in api.tasks("killed", run) if t["task_id"] == "destinations.out")
    assert (task["state"], task["try_number"]) == ("success", 2)
    assert list(dict.fromkeys(receiver.got)) == list(range(1, 401))
    again = receiver.got[sent:]
    assert again == list(range(again[0], 401))


@pytest.mark.slow
def test_a_killed_schedulers_workers_are_ended_when_it_is_started_again(stack: Stack) -> None:
    scheduler = stack.state.processes["scheduler"]
    until(lambda: processes.left_behind(scheduler))
    psutil.Process(scheduler.pid).kill()
    until(lambda: processes.find(scheduler) is None)
    assert processes.left_behind(scheduler)

    said = stack.conduit("stack", "up", "--timeout", str(PATIENCE))

    assert "that a killed scheduler had left running" in said
    until(lambda: processes.left_behind(scheduler) == [])
    assert processes.find(stack.state.processes["scheduler"]) is not None


@pytest.mark.proves("C9", "C11")
def test_a_connect_server_that_is_killed_in_the_middle_is_there_again_and_the_run_goes_on(
    stack: Stack, receiver: Receiver
) -> None:
    # Given a delivery that stays in the middle, at the stack's own Connect server
    receiver.stop_at = 101
    stack.pipeline("served", http(receiver))
    stack.write("served", "a", 1, 400)
    stack.run("served", "--no-wait")
    until(lambda: len(receiver.got) > 100)
    supervisor = psutil.Process(stack.state.processes["spark-connect"].pid)
    [server] = [p for p in supervisor.children() if CLASS in _command(p)]
    # When it is killed
    server.kill()
    receiver.gate.set()
    # Then another one listens at the same address, and the same run tries again and delivers the rest
    run = stack.last_run("served")
    with stack.api() as api:
        until(lambda: api.run("served", run)["state"] in ("success", "failed"))
        task = next(t for t in api.tasks("served", run) if t["task_id"] == "destinations.out")
    assert (task["state"], task["try_number"]) == ("success", 2)
    assert list(dict.fromkeys(receiver.got)) == list(range(1, 401))
    until(Address.parse(stack.state.connect_url).listens)


@pytest.mark.proves("C9", "I3", "I4", "I10")
def test_two_runs_triggered_at_once_deliver_nothing_twice(stack: Stack, receiver: Receiver) -> None:
    stack.pipeline("twice", http(receiver))
    stack.write("twice", "a", 1, 200)

    with stack.api() as api:
        for run in ("one", "two"):
            api.trigger("twice", run, {})
        until(lambda: not api.active_runs("twice"))
        assert [api.run("twice", run)["state"] for run in ("one", "two")] == ["success", "success"]

    assert receiver.got == list(range(1, 201))


@pytest.mark.proves("C15")
def test_a_stop_without_a_run_under_way_starts_one_that_drains_and_says_where_the_dag_is_paused(
    stack: Stack, receiver: Receiver
) -> None:
    # Given records in flight, and no run under way any more
    receiver.gate.clear()
    stack.pipeline("idle", http(receiver))
    stack.write("idle", "a", 1, 20)
    stack.run("idle", "--no-wait")
    until(lambda: receiver.got)
    with stack.api() as api:
        api.request("PATCH", f"/dags/idle/dagRuns/{stack.last_run('idle')}", json={"state": "failed"})
        until(lambda: not api.active_runs("idle") and not drivers("idle"))
        api.request("PATCH", "/dags/idle", json={"is_paused": True})
    receiver.gate.set()
    sent = len(receiver.got)

    # When it is stopped while its DAG is paused, that is said, and nothing drains it
    said = stack.conduit("stop", "idle", "--no-wait")
    assert "paused" in said
    assert status(stack, "idle") == "stopping"

    # And once it is not paused any more, a stop drains it by a run of its own
    with stack.api() as api:
        api.request("PATCH", "/dags/idle", json={"is_paused": False})
    stack.conduit("stop", "idle", "--deadline", "240")
    assert receiver.got[sent:] == list(range(1, 21))
    assert status(stack, "idle") == "stopped"
    assert stack.last_run("idle").startswith("drain__")
    stack.conduit("start", "idle")


@pytest.mark.slow
def test_clearing_a_destination_that_had_succeeded_sends_again(stack: Stack, receiver: Receiver) -> None:
    stack.pipeline("again", http(receiver, timeout="200s"))
    stack.write("again", "a", 1, 20)
    stack.run("again")
    assert receiver.got == list(range(1, 21))

    run = stack.last_run("again")
    with stack.api() as api:
        body = {"dry_run": False, "dag_run_id": run, "task_ids": ["destinations.out"], "include_downstream": True}
        api.request("POST", "/dags/again/clearTaskInstances", json={**body, "only_failed": False})
        until(lambda: len(receiver.got) >= 40)
        until(lambda: api.run("again", run)["state"] == "success")

    assert receiver.got == [*range(1, 21), *range(1, 21)]


@pytest.mark.proves("C15", "C3")
def test_a_shutdown_delivers_what_is_in_flight_and_the_next_start_goes_on(stack: Stack, receiver: Receiver) -> None:
    # Given a run that stays in the middle of its delivery, for as long as it takes to stop everything else
    receiver.stop_at = 6
    stack.pipeline("drained", http(receiver, timeout="200s"))
    stack.write("drained", "a", 1, 300)
    stack.run("drained", "--no-wait")
    until(lambda: len(receiver.got) > 5)

    # When the stack is stopped
    with ThreadPoolExecutor(1) as pool:
        down = pool.submit(stack.conduit, "stack", "down", "--deadline", "240")
        try:
            until(lambda: down.done() or status(stack, "drained") == "stopping")
        finally:
            receiver.gate.set()
        said = down.result()

    # Then it waited for the rest, and nothing runs any more
    assert "drained: draining" in said
    assert receiver.got == list(range(1, 301))
    until(lambda: left_of(stack.home) == [])
    assert stack.conduit("stack", "status", code=1).count("stopped") == 5

    # And after the next start the pipeline runs again
    stack.write("drained", "b", 301, 310)
    assert "drained: running again" in stack.conduit("stack", "up", "--timeout", str(PATIENCE))
    stack.run("drained")
    assert receiver.got == list(range(1, 311))


@pytest.mark.proves("C15")
def test_a_scheduler_that_is_asked_to_end_has_its_runs_finish_what_they_are_at(
    stack: Stack, receiver: Receiver
) -> None:
    # Given a run with a backlog of thirty micro-batches, of which each takes its time
    receiver.pause = 0.3
    stack.pipeline("wound", http(receiver), more="micro-batch: {max-records: 20}")
    stack.write("wound", "a", 1, 600)
    stack.run("wound", "--no-wait")
    until(lambda: len(receiver.got) > 5)
    # When only the scheduler is asked to end, as `docker compose down` does first
    scheduler = stack.state.processes["scheduler"]
    psutil.Process(scheduler.pid).send_signal(signal.SIGTERM)
    until(lambda: processes.find(scheduler) is None)
    # Then its tasks have ended with the micro-batches that they were at, before all is delivered
    assert len(receiver.got) < 600
    assert len(receiver.got) % 20 == 0
    # And the next start goes on by itself, in order
    receiver.pause = 0.0
    stack.conduit("stack", "up", "--timeout", str(PATIENCE))
    until(lambda: len(receiver.got) >= 600)
    assert receiver.got == list(range(1, 601))


def test_the_status_of_a_pipeline_is_for_those_who_may_see_its_dag(stack: Stack) -> None:
    stack.pipeline("seen", "plugin: file, settings: {path: out/seen.jsonl}")
    stack.write("seen", "a", 1, 10)
    stack.run("seen")
    url = f"{stack.state.api_url}/conduit/v1/pipelines/seen"

    assert httpx.get(url, timeout=PATIENCE).status_code == 401
    password = stack.home / ".conduit" / "airflow" / "passwords.json"
    said = httpx.get(url, headers={"Authorization": f"Bearer {token(stack, password)}"}, timeout=PATIENCE)

    assert said.status_code == 200
    assert said.json()["status"] == "running"
    out = said.json()["destinations"][0]
    assert (out["id"], out["cursor"], out["delivered"]) == ("out", 1, 10)
    assert said.json()["sealed"] == 1


def token(stack: Stack, password: Path) -> str:
    import json

    body = {"username": "admin", "password": json.loads(password.read_text())["admin"]}
    said = httpx.post(f"{stack.state.api_url}/auth/token", json=body, timeout=PATIENCE)
    return str(said.raise_for_status().json()["access_token"])


def status(stack: Stack, pipeline: str) -> str:
    return str(json.loads(stack.conduit("status", pipeline, "--format", "json"))["status"])


def worker_of(stack: Stack, pipeline: str) -> psutil.Process:
    """The process of Airflow's executor in which this pipeline's delivery was started."""
    running = set(drivers(pipeline, "destinations.out"))
    scheduler = psutil.Process(stack.state.processes["scheduler"].pid)
    return next(w for w in scheduler.children() if running & {p.pid for p in below(w)})


def drivers(pipeline: str, node: str = "--node") -> list[int]:
    """Processes of Spark applications of this pipeline, or of one node of it."""
    return [p.pid for p in psutil.process_iter() if {pipeline, "--node", node} <= set(_command(p))]


def left_of(home: Path) -> list[list[str]]:
    """Processes that still work in this home."""
    return [_command(p) for p in psutil.process_iter() if _environment(p).get("CONDUIT_HOME") == str(home)]


def below(process: psutil.Process) -> list[psutil.Process]:
    """All that it has started; none where it has ended meanwhile."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill(found: list[psutil.Process]) -> None:
    """SIGKILL to those that run still: the end of one may end another."""
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}
