"""The DAG has the pipeline's shape, and Airflow reads it without loading what runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks.airflow.errors import raise_findings
from conduit_tasks.airflow.factory import POOL_VARIABLE, load_dags
from conduit_tasks.errors import ConfigError
from tests.airflow.conftest import PROCESSORS, write_pipeline

REPOSITORY = Path(__file__).parents[2]
HEAVY = (
    "pyspark",
    "pyarrow",
    "redis",
    "httptools",
    "pandas",
    "conduit_tasks.broker",
    "conduit_tasks.connectors.registry",
)


@pytest.mark.proves("C1")
def test_a_dag_has_the_shape_of_its_pipeline(home: Path) -> None:
    write_pipeline(home, processors=PROCESSORS)

    dag, *_ = load_dags()

    after = {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks}
    log = next(id for id in after if id.startswith("destinations.log_b"))
    assert after == {
        "plan": [],
        "sources.one": ["plan"],
        "sources.two": ["plan"],
        "fan_in": ["sources.one", "sources.two"],
        "processors": ["fan_in", "plan"],
        "fan_out": ["processors"],
        "destinations.out": ["fan_out", "plan"],
        log: ["fan_out", "plan"],
        "acks.one": [log, "destinations.out", "plan"],
        "acks.two": [log, "destinations.out", "plan"],
        "end": ["acks.one", "acks.two", log, "destinations.out", "fan_out"],
    }


def test_without_processors_the_fan_in_leads_to_the_fan_out(home: Path) -> None:
    write_pipeline(home)

    dag, *_ = load_dags()

    assert "processors" not in dag.task_ids
    assert dag.get_task("fan_out").upstream_task_ids == {"fan_in"}


def test_nodes_start_once_plan_has_found_work_acks_whatever_happened_and_the_end_knows_of_every_failure(
    home: Path,
) -> None:
    write_pipeline(home, processors=PROCESSORS)

    dag, *_ = load_dags()

    rules = {task.task_id.split(".")[0]: task.trigger_rule.value for task in dag.tasks}
    assert rules == {
        "plan": "all_success",
        "sources": "one_success",
        "fan_in": "none_failed",
        "processors": "one_success",
        "fan_out": "none_failed",
        "destinations": "one_success",
        "acks": "one_done",
        "end": "none_failed",
    }
    assert dag.get_task("plan").ignore_downstream_trigger_rules  # type: ignore[attr-defined]
    # And where slots are scarce, who comes first has one first
    weights = {task.task_id.split(".")[0]: task.priority_weight for task in dag.tasks}
    assert weights["sources"] > weights["processors"] > weights["destinations"] > weights["acks"]


def test_submits_are_bounded_by_pool_and_time_and_retried_for_the_machinery(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POOL_VARIABLE, "conduit_spark")
    write_pipeline(home, schedule="2m", processors=PROCESSORS)

    dag, *_ = load_dags()

    destination, processors = dag.get_task("destinations.out"), dag.get_task("processors")
    assert (destination.pool, dag.get_task("plan").pool) == ("conduit_spark", "default_pool")
    assert destination.retries == 2
    assert destination.execution_timeout is not None
    assert destination.execution_timeout.total_seconds() > destination.drain_limit == 3600  # type: ignore[attr-defined]
    assert destination.durable is False  # type: ignore[attr-defined]
    assert (destination.quick_jit, processors.quick_jit) == (True, False)  # type: ignore[attr-defined]


def test_the_page_of_a_dag_shows_picture_guarantees_and_what_a_manual_run_may_choose(home: Path) -> None:
    write_pipeline(home)

    dag, *_ = load_dags()

    assert dag.doc_md is not None
    assert "```mermaid\nflowchart" in dag.doc_md
    assert "at-least-once" in dag.doc_md
    assert dag.params.dump() == {"destinations": [], "max-records": None}
    assert {"conduit", "file", "log"} <= dag.tags


@pytest.mark.parametrize(("status", "paused"), [("running", False), ("stopped", True)])
def test_a_stopped_pipeline_begins_paused(home: Path, status: str, paused: bool) -> None:
    write_pipeline(home, status=status)

    dag, *_ = load_dags()

    assert dag.is_paused_upon_creation is paused


def test_a_task_builds_only_its_own_dag(home: Path) -> None:
    path = write_pipeline(home)
    path.with_name("other.yaml").write_text(path.read_text().replace("id: toy", "id: other"))

    assert [dag.dag_id for dag in load_dags(only="other")] == ["other"]
    assert sorted(dag.dag_id for dag in load_dags()) == [
        *("other", "other.resend"),
        *("toy", "toy.resend"),
    ]


def test_a_broken_pipeline_leaves_the_others_and_shows_as_an_import_error(home: Path) -> None:
    path = write_pipeline(home)
    path.with_name("broken.yaml").write_text('version: "2.2"\npipelines:\n  - id: broken\n    shedule: 30s\n')

    assert [dag.dag_id for dag in load_dags()] == ["toy", "toy.resend"]
    with pytest.raises(ConfigError, match=r"broken\.yaml:4.*shedule"):
        raise_findings()


def test_good_files_raise_nothing(home: Path) -> None:
    write_pipeline(home)

    raise_findings()


@pytest.mark.slow
def test_parsing_a_dag_file_loads_nothing_that_runs_it(home: Path, tmp_path: Path) -> None:
    """Against a baseline: what Airflow and the provider load by themselves is not ours."""
    write_pipeline(home, processors=PROCESSORS)
    script = """
import sys, json
from airflow.sdk import DAG, get_parsing_context
from airflow.providers.standard.operators.python import PythonOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
before = set(sys.modules)
import conduit
print(json.dumps([[d for d in vars(conduit) if d == "toy"], sorted(set(sys.modules) - before)]))
"""
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY / "dags"), "AIRFLOW_HOME": str(tmp_path / "airflow")}

    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)

    dags, loaded = json.loads(done.stdout.strip().splitlines()[-1])
    assert dags == ["toy"]
    assert [m for m in loaded if m.startswith(HEAVY)] == []


def test_the_dag_survives_airflows_serialisation(home: Path) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    write_pipeline(home, processors=PROCESSORS)
    dag, *_ = load_dags()

    again = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    assert set(again.task_ids) == set(dag.task_ids)
