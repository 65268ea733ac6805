"""Steps after a delivery that are events of an asset: one for each micro-batch, in order, at least once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import DownstreamTasksSkipped
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetAssetEventByAssetAlias, OKResponse, TriggerDagRun
from airflow.sdk.execution_time.context import OutletEventAccessors

from conduit_tasks.airflow.asset_steps import AssetStepOperator, asset_of
from conduit_tasks.airflow.compat import AirflowSkipException
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.on_delivered import stepping
from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.collection import collect
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.on_delivered import pending
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.pipeline.assets import outlets
from conduit_tasks.pipeline.load import get_pipeline, load_file
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.txt}}
      - {id: "o:t", type: destination, plugin: file, settings: {path: out.jsonl}, on-delivered: {asset: each}}
      - {id: plain, type: destination, plugin: file, settings: {path: plain.jsonl}}
"""


class Airflow:
    """Stands for Airflow: stores the events of tasks that succeed, and says which there are."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.triggered: list[TriggerDagRun] = []
        self.silent = False
        self.ahead = timedelta()
        """By how much its clock is ahead."""

    def send(self, asked: Any) -> Any:
        if isinstance(asked, TriggerDagRun):
            self.triggered.append(asked)
            return OKResponse(ok=True)
        assert isinstance(asked, GetAssetEventByAssetAlias)
        if self.silent:
            return ErrorResponse()
        found = [each for each in self.events if each.alias == asked.alias_name]
        assert asked.ascending is False
        found = [each for each in found if asked.before is None or each.timestamp <= asked.before]
        return SimpleNamespace(asset_events=sorted(found, key=lambda each: each.timestamp)[::-1][: asked.limit])

    def run(self, run: str = "r", *, ends: str = "well") -> list[int]:
        """Runs the task; `ends`: "well", or "rejected" (Airflow has no word of its success), or "dead" (nobody hears
        that Airflow has it). Returns the micro-batches of its events."""
        [dag] = load_dags("p")
        step = dag.get_task(next(id for id in dag.task_ids if id.startswith("steps.")))
        assert isinstance(step, AssetStepOperator)
        ti = SimpleNamespace(dag_id="p", run_id=run, task=step, get_dagrun_state=lambda *_: "running")
        accessors = OutletEventAccessors()
        context = {"ti": ti, "run_id": run, "outlet_events": accessors, "params": {}}
        context["dag_run"] = SimpleNamespace(start_date=datetime.now(UTC))
        step.execute(context)
        # As Airflow does: only what an outlet names is stored.
        [alias] = step.outlets
        assert isinstance(alias, AssetAlias)
        new = [
            SimpleNamespace(
                alias=alias.name,
                asset=each.dest_asset_key.name,
                extra=each.extra,
                timestamp=datetime.now(UTC) + self.ahead,
            )
            for each in accessors[alias].asset_alias_events
        ]
        self.events += new if ends != "rejected" else []
        if ends != "dead":
            for told in step.on_success_callback:
                told(context)
        else:
            step._held.close()
        return [each.extra["micro_batch"] for each in new]

    @property
    def told(self) -> list[tuple[int, int]]:
        return [(each.extra["micro_batch"], each.extra["records"]) for each in self.events]


@pytest.fixture
def airflow(home: Path, monkeypatch: pytest.MonkeyPatch) -> Airflow:
    """A pipeline of which a run has noted from where on there are steps."""
    write_pipeline(home, "p", PIPELINE)
    with stepping("p", "o:t", "r0"):
        pass
    stand_in = Airflow()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", stand_in, raising=False)
    return stand_in


def deliver(home: Path, run: str, *sizes: int) -> None:
    """Delivers micro-batches of these numbers of records."""
    for n, lines in enumerate(sizes):
        with (home / "in.txt").open("a") as file:
            file.write("x\n" * lines)
        run_once("p", f"{run}.{n}")


def test_each_micro_batch_is_an_event_of_the_asset(home: Path, airflow: Airflow) -> None:
    # Given three micro-batches
    deliver(home, "r1", 2, 2, 1)
    assert plan_run("p", "r2").reason == "steps not called: o:t"
    # When the task after the destination's runs
    assert airflow.run() == [1, 2, 3]
    # Then Airflow has an event of each, that says which one it is
    assert airflow.told == [(1, 2), (2, 2), (3, 1)]
    [asset] = {each.asset for each in airflow.events}
    assert asset == "each"
    extra = airflow.events[0].extra
    assert (extra["pipeline"], extra["destination"], extra["sealed_at"] > 1.6e9) == ("p", "o:t", True)
    assert len({each.extra["id"] for each in airflow.events}) == 3
    # And nothing is left to do
    assert plan_run("p", "r3").work is False
    with pytest.raises(AirflowSkipException):
        airflow.run()


def test_events_that_airflow_did_not_store_come_again(home: Path, airflow: Airflow) -> None:
    deliver(home, "r1", 2, 1)
    airflow.run(ends="rejected")
    assert plan_run("p", "r2").reason == "steps not called: o:t"
    assert airflow.run() == [1, 2]


def test_events_that_airflow_has_do_not_come_again_if_nobody_could_say_so(home: Path, airflow: Airflow) -> None:
    # Given a task that died when Airflow had its events
    deliver(home, "r1", 2, 1)
    airflow.run(ends="dead")
    deliver(home, "r2", 1)
    # Then the next one emits what is new
    assert airflow.run() == [3]
    # And if there is nothing new, it only says so
    deliver(home, "r3", 1)
    airflow.run(ends="dead")
    with pytest.raises(AirflowSkipException):
        airflow.run()
    assert plan_run("p", "r4").work is False


def test_two_tasks_do_not_emit_at_the_same_time(home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver(home, "r1", 1)
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.3")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")
    with opened("p", "other") as context, pending(context.broker, "o:t", "other", 10, wait=0) as other:
        # Given another task that emits: Then this one leaves it alone
        with pytest.raises(AirflowSkipException):
            airflow.run()
        other.told_through(1)
    assert plan_run("p", "r2").work is False


def test_a_task_emits_so_many_and_a_run_follows_for_the_rest(
    home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("conduit_tasks.airflow.asset_steps.MOST", 2)
    deliver(home, "r1", 2, 2, 1)
    assert airflow.run() == [1, 2]
    [after] = airflow.triggered
    assert (after.dag_id, after.conf) == ("p", {"max-records": 0})
    assert airflow.run("r2") == [3]
    assert len(airflow.triggered) == 1


def test_events_are_emitted_also_while_another_run_lasts_and_does_all_the_work(
    home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given more events than a task emits, and a run that reads and delivers on and on
    monkeypatch.setattr("conduit_tasks.airflow.asset_steps.MOST", 2)
    deliver(home, "r1", 2, 2, 1)
    write_pipeline(home, "p", PIPELINE.replace("connectors:", 'schedule: "@continuous"\n    connectors:'))
    assert plan_run("p", "lasts").work is True
    with opened("p", "lasts") as context:
        context.broker.runs.tell_at_work("lasts", "sources.in", 600)
    airflow.run("lasts")
    [after] = airflow.triggered

    def planned(run: str) -> set[str]:
        """The tasks that are skipped after `plan` of the run that follows."""
        [dag] = load_dags("p")
        ti = SimpleNamespace(dag_id="p", run_id=run, map_index=-1, xcom_push=lambda **_: None)
        dag_run = SimpleNamespace(dag_id="p", run_id=run, run_type="manual")
        plan = dag.get_task("plan")
        context = {"ti": ti, "run_id": run, "params": {"max-records": 0}, "dag_run": dag_run, "task": plan}
        with pytest.raises(DownstreamTasksSkipped) as raised:
            plan.execute(context)
        return {*raised.value.tasks}

    # When the run that follows is planned, Then only the task that emits is left
    [dag] = load_dags("p")
    [step] = [id for id in dag.task_ids if id.startswith("steps.")]
    assert planned(after.run_id) == {*dag.task_ids} - {"plan", step}
    assert airflow.run(after.run_id) == [3]
    # And if nothing is left to emit, or the pipeline is stopped, none is
    assert planned("x") == {*dag.task_ids} - {"plan"}
    deliver(home, "r2", 1)
    with opened("p", "stop") as context:
        context.broker.lifecycle.force_stop()
    assert step in planned("y")


@pytest.mark.slow
def test_events_of_a_clock_that_was_ahead_do_not_hide_those_of_now(
    home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given events that Airflow stored while its clock was an hour ahead, more than it is asked for at a time
    monkeypatch.setattr("conduit_tasks.airflow.asset_steps.LAST", 2)
    monkeypatch.setattr("conduit_tasks.airflow.asset_steps.MOST", 3)
    airflow.ahead = timedelta(hours=1)
    deliver(home, "r1", 1, 1, 1)
    airflow.run()
    deliver(home, "r2", 1, 1, 1)
    airflow.run()
    # When the clock is right again, Then its events are found, and come once
    airflow.ahead = timedelta()
    deliver(home, "r3", 1)
    assert airflow.run() == [7]
    assert plan_run("p", "r4").work is False
    # And also if all were stored at the same moment
    for event in airflow.events:
        event.timestamp = airflow.events[0].timestamp
    deliver(home, "r5", 1)
    assert airflow.run() == [8]


def test_an_event_keeps_its_id_if_the_time_of_the_seal_is_put_right(home: Path, airflow: Airflow) -> None:
    deliver(home, "r1", 1)
    airflow.run(ends="dead")
    with opened("p", "clock") as context:
        broker = context.broker
        broker.access.redis.hset(broker.keys.micro_batch(1), "sealed_at", "1")
    with pytest.raises(AirflowSkipException):
        airflow.run()


def test_what_is_not_told_is_not_collected_for_days(
    home: Path, airflow: Airflow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given micro-batches that are delivered and acked, beyond their retention, of which Airflow has not heard
    write_pipeline(home, "p", PIPELINE.replace("connectors:", "spool: {retention: 0s}\n    connectors:"))
    deliver(home, "r1", 2, 2, 1)

    def collected() -> list[int]:
        with opened("p", "acks") as context:
            return collect(context)

    assert collected() == []
    # When it has heard of two, Then they go
    monkeypatch.setattr("conduit_tasks.airflow.asset_steps.MOST", 2)
    airflow.run()
    assert (airflow.told, collected()) == ([(1, 2), (2, 2)], [1, 2])
    assert "removed from the spool" not in caplog.text
    # And days later the others go all the same, and the log says so
    monkeypatch.setattr("conduit_tasks.micro_batch.collection.STEPS", -1.0)
    assert collected() == [3]
    assert "micro-batches 3 to 3 are removed from the spool although the step of o:t was not called" in caplog.text
    airflow.run()
    assert airflow.told[2] == (3, None)


@pytest.mark.parametrize("ends", ["dead", "well"])
def test_a_stop_that_waits_for_events_ends_with_the_run_that_tells_of_the_last(
    home: Path, airflow: Airflow, ends: str
) -> None:
    # Given a stop, and a task that emits; it may have died when Airflow had its events
    deliver(home, "r1", 1)
    with opened("p", "stop") as context:
        context.broker.lifecycle.stop(60)
    airflow.run(ends=ends)
    if ends == "dead":
        # When the next one finds that, Then it ends the stop
        with pytest.raises(AirflowSkipException):
            airflow.run("r2")
    with opened("p", "look") as context:
        assert context.broker.lifecycle.stored_status() == "stopped"


def test_an_asset_that_a_provider_does_not_take_is_an_error_of_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given what a provider does with the URIs of its scheme; that of PostgreSQL is not installed
    def takes(parts: Any) -> Any:
        if parts.scheme == "postgres" and parts.path.count("/") != 3:
            raise ValueError("URI format postgres:// must contain database, schema, and table names")
        return parts

    monkeypatch.setattr("airflow.sdk.definitions.asset._get_uri_normalizer", lambda _: takes)
    # Then the file's validation says so
    write_pipeline(home, "p", PIPELINE.replace("{asset: each}", "{asset: 'postgres://db/x'}"))
    [found] = load_file(home / "include" / "pipelines" / "p.yaml", plugins=True).errors
    assert (found.code, "must contain database" in found.message) == ("E217", True)
    # And so does the task, if the provider came later
    with pytest.raises(ConfigError, match="postgres://db/x is no asset of Airflow's: "):
        asset_of("postgres://db/x")


def test_no_event_is_emitted_unless_airflow_says_which_it_has(home: Path, airflow: Airflow) -> None:
    deliver(home, "r1", 1)
    airflow.silent = True
    with pytest.raises(Exception, match="does not say which events it has"):
        airflow.run()
    airflow.silent = False
    assert airflow.run() == [1]


def test_the_dag_has_a_task_for_them_after_the_destination(home: Path, airflow: Airflow) -> None:
    [dag] = load_dags("p")
    [step] = [task for task in dag.tasks if task.task_id.startswith("steps.")]
    after, ends = step.upstream_task_ids, step.downstream_task_ids
    assert ({id.partition(".")[0] for id in after}, ends) == ({"destinations"}, {"end"})
    # And it is a task that makes the asset, for Airflow's graph
    assert [type(each) for each in step.outlets] == [Asset, AssetAlias]
    # And it runs however the destination has ended
    assert step.trigger_rule == "all_done"


def test_an_asset_that_the_destination_writes_has_an_event_of_each_micro_batch_instead_of_each_run(home: Path) -> None:
    text = PIPELINE.replace("on-delivered:", "asset: [each, s3://b/x], on-delivered:")
    write_pipeline(home, "p", text)
    assert outlets(get_pipeline("p").destination("o:t")) == ("s3://b/x",)
