"""An Airflow without a database: DAGs are built, operators executed by hand; its home is a temporary folder."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Airflow writes a configuration file at its first import.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="conduit-airflow-")

with warnings.catch_warnings():
    # Airflow's own imports warn of its dependencies' futures; none of that is ours.
    warnings.simplefilter("ignore")
    import airflow.sdk
    import airflow.timetables.trigger  # noqa: F401

    # The test client asks for a successor of httpx.
    import fastapi.testclient  # noqa: F401
    from airflow.providers.apache.spark.operators import spark_submit  # noqa: F401
    from airflow.sdk.api.datamodels._generated import DagRunState
    from airflow.sdk.exceptions import ErrorType
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, OKResponse, TriggerDagRun

    import conduit_tasks.airflow.api.app
    import conduit_tasks.airflow.factory  # noqa: F401

PIPELINE = """\
version: "2.2"
pipelines:
  - id: toy
    description: Lines to two places.
    schedule: {schedule}
    status: {status}
    connectors:
      - {{id: one, type: source, plugin: builtin:file, settings: {{path: "in/*.jsonl"}}}}
      - {{id: two, type: source, plugin: builtin:file, settings: {{path: "more/*.jsonl"}}}}
      - {{id: out, type: destination, plugin: builtin:file, settings: {{path: out/out.jsonl}}}}
      - {{id: "log:b", type: destination, plugin: builtin:log}}
{processors}"""
PROCESSORS = """\
    processors:
      - {id: tidy, plugin: sql, settings: {query: "SELECT * FROM records"}}
"""


def write_pipeline(home: Path, *, schedule: str = "30s", status: str = "running", processors: str = "") -> Path:
    """A pipeline of two sources and two destinations, in the home's folder."""
    path = home / "include" / "pipelines" / "toy.yaml"
    path.write_text(PIPELINE.format(schedule=f'"{schedule}"', status=status, processors=processors))
    return path


@pytest.fixture(autouse=True)
def _started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers are started, not forked, unless a test says otherwise: what this process has loaded is chance."""
    monkeypatch.setattr("conduit_tasks.airflow.forked.loaded", lambda: False)


@pytest.fixture
def spark_connection(monkeypatch: pytest.MonkeyPatch) -> str:
    """The Airflow connection of submits, as the embedded stack defines it."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[1]"}')
    return "spark_default"


@pytest.fixture
def context() -> dict[str, Any]:
    """What a task is executed with: a first try of run `r1` with the default params."""
    ti = SimpleNamespace(try_number=1, max_tries=2, dag_id="toy", run_id="r1")
    # What Airflow's own answers with
    ti.get_dagrun_state = lambda dag_id, run_id: DagRunState.RUNNING
    ti.xcom_pull = lambda task_ids: None
    return {"run_id": "r1", "ti": ti, "params": {"destinations": [], "max-records": None}}


@pytest.fixture
def triggered(monkeypatch: pytest.MonkeyPatch) -> list[TriggerDagRun]:
    """The runs that tasks had started; one whose id there is already is answered as Airflow does."""
    runs: list[TriggerDagRun] = []

    class Supervisor:
        def send(self, asked: Any) -> OKResponse | ErrorResponse:
            if isinstance(asked, GetVariable):
                return ErrorResponse(error=ErrorType.VARIABLE_NOT_FOUND)
            if not isinstance(asked, TriggerDagRun):
                return OKResponse(ok=True)
            if any(asked.run_id == run.run_id for run in runs):
                return ErrorResponse(error=ErrorType.DAGRUN_ALREADY_EXISTS)
            runs.append(asked)
            return OKResponse(ok=True)

    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", Supervisor(), raising=False)
    return runs


@pytest.fixture
def application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Spark application, replaced by a script that the test writes."""
    path = tmp_path / "application.py"
    monkeypatch.setattr("conduit_tasks.airflow.operator.APPLICATION", path)
    return path
