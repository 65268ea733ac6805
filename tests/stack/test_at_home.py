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

from conduit_tasks.stack.environment import component_environment
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
        said = stack.run("at_home", code=1)
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


def found_in(home: Path) -> list[Path]:
    """Files of the installation that hold the password: logs, spool, Redis, rendered templates, serialized DAGs."""
    (database,) = (home / ".conduit" / "airflow").glob("airflow.db")
    with sqlite3.connect(database) as connection:
        connection.execute("SELECT count(*) FROM rendered_task_instance_fields")
    wanted = SECRET.encode()
    return [path for path in home.rglob("*") if path.is_file() and wanted in path.read_bytes()]
