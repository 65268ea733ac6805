"""`ConduitPipeline` and `DeliveredSensor`, for DAGs that are written by hand."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, TaskGroup
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from conduit_tasks.airflow import ConduitPipeline, DeliveredSensor
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.sensor import DeliveredTrigger, waiting
from conduit_tasks.airflow.tasks import run_of
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import open_broker
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    schedule: {schedule}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: in.txt}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl}}}}
      - id: other
        type: destination
        plugin: http
        settings: {{url: "http://127.0.0.1:1/"}}
        delivery: {{timeout: 1s}}
    isolate: true
    processors: [{{id: f, plugin: filter, condition: '{{{{ eq .Key "no" }}}}'}}]
"""


@pytest.fixture
def pipeline(home: Path) -> Path:
    write_pipeline(home, "p", PIPELINE.format(schedule="none"))
    (home / "in.txt").touch()
    return home


def mine(*, in_a_group: bool = False) -> DAG:
    with DAG("mine", schedule=None) as dag:
        if in_a_group:
            with TaskGroup("outer"):
                ConduitPipeline("p", group_id="inner")
        else:
            ConduitPipeline("p")
    return dag


def test_a_group_has_the_tasks_of_the_pipeline_s_own_dag_with_the_same_edges(pipeline: Path) -> None:
    [own] = load_dags("p")
    inside = mine()
    assert own.schedule is None

    def shape(dag: DAG, prefix: str) -> dict[str, tuple[set[str], str]]:
        return {
            task.task_id.removeprefix(prefix): (
                {u.removeprefix(prefix) for u in task.upstream_task_ids},
                task.trigger_rule,
            )
            for task in dag.tasks
        }

    assert shape(inside, "p.") == shape(own, "")
    # And of two groups around each other, too
    assert shape(mine(in_a_group=True), "outer.inner.") == shape(own, "")


def test_a_group_s_tasks_are_told_where_they_are(pipeline: Path) -> None:
    dag = mine()
    # The acks find the plan of their own group
    assert dag.get_task("p.acks.in").op_kwargs["plan_id"] == "p.plan"  # type: ignore[attr-defined]
    # Tasks of the user's behind it run, also if there was nothing to do
    assert dag.get_task("p.plan").ignore_downstream_trigger_rules is False  # type: ignore[attr-defined]
    # And machinery is tried again, whatever the DAG's own default is
    assert {task.retries for task in dag.tasks} == {2}
    # And Airflow can store the DAG
    assert DagSerialization.to_dict(dag)


def test_a_continuous_pipeline_is_no_group(home: Path) -> None:
    write_pipeline(home, "p", PIPELINE.format(schedule="'@continuous'"))
    with pytest.raises(ConfigError, match="write `schedule: none`"):
        mine()


def test_a_pipeline_that_is_not_there_is_named(home: Path) -> None:
    with pytest.raises(ConfigError, match="no pipeline 'p'"):
        mine()


def test_runs_of_two_dags_with_one_id_are_two_to_the_broker() -> None:
    assert run_of("p", "p", "manual__1") == "manual__1"
    assert run_of("p", "mine", "manual__1") == "mine/manual__1"


def test_importing_the_package_loads_nothing_else() -> None:
    loaded = "m for m in sys.modules if m.startswith(('airflow', 'pyspark'))"
    code = f"import sys, conduit_tasks.airflow; print(sorted({loaded}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def deliver(home: Path, run: str, lines: int) -> None:
    """A run that reads all and finds nothing after it."""
    with (home / "in.txt").open("a") as file:
        file.write("x\n" * lines)
    run_once("p", run)


def ask_again() -> None:
    """What the run's last look at the sources does."""
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.plan import plan

    with opened("p", "last") as context:
        plan(context)


def test_a_sensor_waits_for_the_destinations_that_it_names(pipeline: Path) -> None:
    before = datetime.now(UTC)
    # Given a pipeline that never ran
    assert "were not asked after" in waiting("p", ["out"], before)
    # When one destination has everything and the other is down
    deliver(pipeline, "r1", 3)
    assert "were not asked after" in waiting("p", ["out"], before), "it is not known that there is no more"
    write_pipeline(pipeline, "p", PIPELINE.format(schedule="none") + "    lag-budget: {records: 1000}\n")
    ask_again()
    # Then
    assert waiting("p", ["out"], before) == ""
    assert "other have not confirmed everything up to micro-batch 1" in waiting("p", ["out", "other"], before)
    assert "other have not confirmed" in waiting("p", [], before)
    # And what comes later is not covered
    assert "were not asked after" in waiting("p", ["out"], datetime.now(UTC) + timedelta(hours=1))


def test_a_sensor_waits_for_what_is_read_and_not_delivered(pipeline: Path) -> None:
    # Given records that lie at the source, unread, since the last look
    ask_again()
    until = datetime.now(UTC)
    (pipeline / "in.txt").write_text("a\n")
    # Then the look that finds them is no look that found nothing
    ask_again()
    assert "were not asked after" in waiting("p", ["out"], until)


def sensor(**options: Any) -> DeliveredSensor:
    return DeliveredSensor(task_id="s", pipeline_id="p", destinations=["out"], poke_interval=0.05, **options)


def test_a_sensor_defers_and_ends_by_its_trigger(pipeline: Path) -> None:
    # Given something to wait for
    with pytest.raises(TaskDeferred) as deferred:
        sensor().execute({})
    trigger = deferred.value.trigger
    path, arguments = trigger.serialize()
    assert path == "conduit_tasks.airflow.sensor.DeliveredTrigger"
    assert arguments["until"] is not None

    async def first() -> Any:
        events = DeliveredTrigger(**arguments).run()
        task = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not task.done()
        # When it is delivered
        await asyncio.get_running_loop().run_in_executor(None, ask_again)
        return await asyncio.wait_for(task, 60)

    # Then the trigger says so, and the task ends
    event = asyncio.run(first())
    assert event.payload == {"delivered": True}
    sensor().execute_complete({}, event.payload)
    # And a sensor that finds everything there does not defer
    sensor(until="2020-01-01").execute({})
    sensor(until="2020-01-01", deferrable=False).execute({})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"until": "tomorrow"}, "'tomorrow' is no time"),
        ({"destinations": ["ou"]}, "no destination ou; it has out, other"),
    ],
)
def test_what_is_wrong_fails_at_once(pipeline: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises((AirflowFailException, ConfigError), match=says):
        DeliveredSensor(**{"task_id": "s", "pipeline_id": "p", **options}).execute({})


def test_a_degraded_pipeline_is_not_waited_for(pipeline: Path) -> None:
    # Given a pipeline that an error has stopped
    broker = open_broker("p")
    broker.access.redis.hset(broker.keys.pipeline, "status", "degraded")
    broker.close()
    # Then
    with pytest.raises(AirflowFailException, match="degraded"):
        sensor().execute({})
    arguments: dict[str, Any] = {"pipeline_id": "p", "destinations": ["out"], "until": "2020-01-01", "poke_interval": 1}
    event = asyncio.run(anext(DeliveredTrigger(**arguments).run()))  # type: ignore[arg-type]
    with pytest.raises(AirflowFailException, match="degraded"):
        sensor().execute_complete({}, event.payload)
