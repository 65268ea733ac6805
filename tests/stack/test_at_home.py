"""A pipeline among other things of Airflow's, under the real scheduler: its connections, and DAGs scheduled on what it
delivers."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.stack.environment import USER, component_environment, load_secrets
from conduit_tasks.stack.layout import Layout
from tests.stack.conftest import Receiver, Stack, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

SECRET = "p@ss-word-of-the-receiver"
LISTENER = """
from airflow.sdk import DAG, Asset, task

with DAG("after", schedule=[Asset("delivered-at-home")], catchup=False, is_paused_upon_creation=False):
    @task
    def told(triggering_asset_events=None):
        return [event.extra for events in triggering_asset_events.values() for event in events]

    told()
"""


def airflow(stack: Stack, *arguments: str) -> None:
    environment = component_environment(Layout(stack.home), stack.state.api_url, stack.state.redis_url)
    command = [str(Path(sys.executable).parent / "airflow"), *arguments]
    subprocess.run(command, env={**os.environ, **stack.environment, **environment}, check=True, capture_output=True)


def results(stack: Stack, dag: str) -> list[Any]:
    """The result of each run that has ended, oldest first."""
    with stack.api() as api:
        runs = api.request("GET", f"/dags/{dag}/dagRuns", params={"order_by": "run_after", "limit": 50})["dag_runs"]
        ended = [run["dag_run_id"] for run in runs if run["state"] == "success"]
        path = "/dags/{}/dagRuns/{}/taskInstances/told/xcomEntries/return_value"
        return [json.loads(json.dumps(api.request("GET", path.format(dag, run))["value"])) for run in ended]


@pytest.mark.slow
def test_a_pipeline_takes_its_connection_from_airflow_and_other_dags_follow_it(
    stack: Stack, receiver: Receiver
) -> None:
    # Given a DAG that is scheduled on what a pipeline delivers
    (stack.home / "dags" / "after.py").write_text(LISTENER)
    # And a pipeline whose receiver is in a connection that nobody knows yet
    destination = "plugin: http, settings: {connection: receiver, url: /events}, asset: delivered-at-home"
    stack.pipeline("at_home", destination)
    with stack.lent("at_home"):
        stack.write("at_home", "a", 1, 20)
        assert "E216 the Airflow connection 'receiver' does not exist" in stack.conduit("validate", code=1)
        stack.run("at_home", code=1)
        logs = stack.home / ".conduit" / "airflow" / "logs" / "dag_id=at_home"
        said = "".join(log.read_text() for log in logs.rglob("task_id=destinations.out/*.log"))
        assert "the Airflow connection 'receiver' does not exist" in said

        # When it is added
        host = receiver.url.partition("://")[2].partition("/")[0].partition(":")
        add = ["--conn-type", "http", "--conn-host", host[0], "--conn-port", host[2], "--conn-login", "me"]
        airflow(stack, "connections", "add", "receiver", *add, "--conn-password", SECRET)
        stack.conduit("validate")
        with stack.api() as api:
            until(lambda: api.dag("after"))
        stack.run("at_home")

        # Then everything is delivered
        assert sorted(receiver.got) == list(range(1, 21))
        # And the other DAG ran, once, with what was delivered
        until(lambda: results(stack, "after"))
        [[extra]] = results(stack, "after")
        assert extra["counts"]["delivered"] == 20
        assert (extra["pipeline"], extra["destination"]) == ("at_home", "out")

        # And the password is nowhere but in Airflow's database, where it is encrypted
        assert found_in(stack.home) == []
        # And a run that finds nothing is no event
        stack.run("at_home")
        assert len(results(stack, "after")) == 1
        (stack.home / "dags" / "after.py").unlink()


STEP = """
from airflow.sdk import DAG, task

with DAG("step", schedule=None, catchup=False, max_active_runs=1, is_paused_upon_creation=False):
    @task
    def told(dag_run=None):
        return dag_run.conf

    told()
"""


@pytest.mark.slow
def test_a_dag_runs_for_each_micro_batch_that_is_delivered(stack: Stack) -> None:
    # Given a DAG, and a destination that has it triggered
    (stack.home / "dags" / "step.py").write_text(STEP)
    with stack.api() as api:
        until(lambda: api.dag("step"))
    stack.pipeline("stepped", "plugin: file, settings: {path: out/stepped.jsonl}, on-delivered: {dag: step}")
    with stack.lent("stepped"):
        # When two micro-batches are delivered, and a run finds nothing
        for name, first, last in (("a", 1, 3), ("b", 4, 8)):
            stack.write("stepped", name, first, last)
            stack.run("stepped")
        stack.run("stepped")
        # Then it ran once for each, in order
        until(lambda: len(results(stack, "step")) == 2)
        assert [(told["micro_batch"], told["records"]) for told in results(stack, "step")] == [(1, 3), (2, 5)]
        (stack.home / "dags" / "step.py").unlink()


EACH = """
from airflow.sdk import DAG, Asset, task

orders = Asset("each-micro-batch")
with DAG("each", schedule=[orders], catchup=False, is_paused_upon_creation=False):
    @task(inlets=[orders])
    def told(inlet_events=None):
        return [event.extra["micro_batch"] for event in inlet_events[orders]]

    told()
"""


@pytest.mark.slow
def test_each_micro_batch_is_an_event_of_an_asset(stack: Stack) -> None:
    # Given a DAG on an asset of which each micro-batch of a destination is an event
    (stack.home / "dags" / "each.py").write_text(EACH)
    with stack.api() as api:
        until(lambda: api.dag("each"))
    destination = "plugin: file, settings: {path: out/told.jsonl}, on-delivered: {asset: each-micro-batch}"
    stack.pipeline("told", destination, more="micro-batch: {max-records: 3}")
    with stack.lent("told"):
        # When a run delivers some, and one finds nothing
        stack.write("told", "a", 1, 8)
        stack.run("told")
        assert stack.states("told")["steps.out"] == "success"
        stack.run("told")
        # Then nothing was left to tell
        assert set(stack.states("told").values()) == {"success", "skipped"}
        assert stack.states("told")["destinations.out"] == "skipped"
        # And Airflow has an event of each, in order
        with stack.api() as api:
            asked = {"source_dag_id": "told", "order_by": "timestamp"}
            events = api.request("GET", "/assets/events", params=asked)["asset_events"]
        extras = [event["extra"] for event in events if event["source_task_id"] == "steps.out"]
        told = [(extra["micro_batch"], extra["records"]) for extra in extras]
        assert told == [(1, 3), (2, 3), (3, 2)]
        # And the DAG ran and saw them
        until(lambda: [1, 2, 3] in results(stack, "each"))
        (stack.home / "dags" / "each.py").unlink()


EXAMPLES = Path(__file__).parents[2] / "examples" / "airflow"


@pytest.mark.slow
def test_the_examples_run(stack: Stack) -> None:
    # Given the examples, under names that nobody else on this stack has, and something sold
    (stack.home / "in" / "sold").mkdir(parents=True)
    stack.write("sold", "a", 1, 5)
    for folder, to in (("pipelines", "include/pipelines"), ("dags", "dags")):
        for file in (EXAMPLES / folder).iterdir():
            if file.is_file():
                name = file.name.replace("orders", "sold")
                (stack.home / to / name).write_text(file.read_text().replace("orders", "sold"))
    with stack.lent("sold"), stack.api() as api:
        # With a connection for the one that asks the API
        host, _, port = stack.state.api_url.removeprefix("http://").rpartition(":")
        login = {"login": USER, "password": load_secrets(Layout(stack.home))["password"]}
        connection = {"connection_id": "conduit_default", "conn_type": "http", "host": host, "port": int(port), **login}
        api.request("POST", "/connections", json=connection)
        # The one that delivers comes last: while a DAG is paused, Airflow notes no events of assets for it
        for dag in ("report", "wait", "again", "nightly"):
            until(lambda dag=dag: api.dag(dag))  # type: ignore[misc]
            api.request("PATCH", f"/dags/{dag}", json={"is_paused": False})
        # When the DAG runs of which the pipeline is a part: Airflow makes up for the last night
        until(lambda: api.request("GET", "/dags/nightly/dagRuns")["total_entries"] == 1)
        (run,) = api.request("GET", "/dags/nightly/dagRuns")["dag_runs"]
        until(lambda: api.run("nightly", run["dag_run_id"])["state"] in ("success", "failed"))
        states = {task["task_id"]: task["state"] for task in api.tasks("nightly", run["dag_run_id"])}
        # Then everything is delivered between its tasks
        assert set(states.values()) == {"success"}, states
        assert (stack.home / "out" / "sold.jsonl").read_text().count("\n") == 5
        # And the DAG on its asset ran
        until(lambda: api.request("GET", "/dags/report/dagRuns", params={"state": ["success"]})["total_entries"] == 1)
        # And the sensor waits until somebody has looked at the sources again, from now on: `trigger` says a second ago
        api.request("POST", "/dags/wait/dagRuns", json={"dag_run_id": "by-hand", "logical_date": None})
        until(lambda: any(t["state"] == "deferred" for t in api.tasks("wait", "by-hand")))
        api.trigger("nightly", "again", {})
        until(lambda: api.run("wait", "by-hand")["state"] == "success")
        # And where there was nothing to do, the tasks after the pipeline ran, and there was no further event
        until(lambda: api.run("nightly", "again")["state"] == "success")
        again = {task["task_id"]: task["state"] for task in api.tasks("nightly", "again")}
        assert (again["sold.destinations.lake"], again["tell_the_team"]) == ("skipped", "success")
        assert api.request("GET", "/dags/report/dagRuns")["total_entries"] == 1
        # And a task has asked the API
        api.trigger("again", "by-hand", {})
        until(lambda: api.run("again", "by-hand")["state"] in ("success", "failed"))
        path = "/dags/again/dagRuns/by-hand/taskInstances/send_again/xcomEntries/return_value"
        assert api.request("GET", path)["value"] == "nothing to send again"
        api.request("DELETE", "/connections/conduit_default")
        for dag in ("nightly", "report", "wait", "again"):
            (stack.home / "dags" / f"{dag}.py").unlink()


def found_in(home: Path) -> list[Path]:
    """Files of the installation that hold the password: logs, spool, Redis, rendered templates, serialized DAGs."""
    (database,) = (home / ".conduit" / "airflow").glob("airflow.db")
    with sqlite3.connect(database) as connection:
        connection.execute("SELECT count(*) FROM rendered_task_instance_fields")
    wanted = SECRET.encode()
    return [path for path in home.rglob("*") if path.is_file() and wanted in path.read_bytes()]
