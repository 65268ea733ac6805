"""Tasks of a run tell each other through the broker that they are at work, and start the next run where they must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import DagRunState
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.comms import TriggerDagRun

from conduit_tasks.airflow import tasks
from conduit_tasks.airflow.follow import name_of
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.runs import UnderWay
from conduit_tasks.micro_batch import course as conclusions
from conduit_tasks.micro_batch import draining, work_needed
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.micro_batch.work_needed import WorkNeeded
from tests.airflow.conftest import write_pipeline
from tests.airflow.test_operator import how  # noqa: F401

NODE = "destinations.out"


@pytest.fixture
def broker(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    # The other nodes never begin here
    monkeypatch.setattr(draining, "NEVER", 0.0)
    monkeypatch.setattr(conclusions, "BEGINS_WITHIN", 0.0)
    write_pipeline(home)
    broker = open_broker("toy")
    broker.runs.begin("r1", None, 0)
    yield broker
    broker.close()


@pytest.fixture
def operator(spark_connection: str, application: Path, broker: Broker) -> ConduitSubmitOperator:
    return ConduitSubmitOperator(task_id="t", pipeline_id="toy", node=NODE, drain_limit=60.0)


def course(broker: Broker) -> UnderWay:
    found = broker.runs.under_way("r1")
    assert found is not None
    return found


def test_a_task_is_at_work_until_it_ends(
    operator: ConduitSubmitOperator, broker: Broker, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def awaited(*_: Any, **__: Any) -> WorkNeeded:
        seen.append(course(broker).at_work(NODE))
        return WorkNeeded(False, "nothing to deliver")

    monkeypatch.setattr(work_needed, "awaited", awaited)
    assert not course(broker).began_at(NODE)
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    assert seen == [True]
    assert course(broker).began_at(NODE)
    assert not course(broker).at_work(NODE)


@pytest.mark.parametrize(
    ("error", "try_number", "waited_for"),
    [
        (AirflowException("Spark is away"), 1, True),
        (AirflowException("Spark is away"), 3, False),
        (AirflowFailException("a wrong setting"), 1, False),
        (AirflowSkipException("it is down"), 1, False),
    ],
)
def test_a_task_that_is_tried_again_is_waited_for_and_no_other(
    operator: ConduitSubmitOperator,
    broker: Broker,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    try_number: int,
    waited_for: bool,
) -> None:
    def awaited(*_: Any, **__: Any) -> WorkNeeded:
        raise error

    monkeypatch.setattr(work_needed, "awaited", awaited)
    context["ti"].try_number = try_number
    with pytest.raises(type(error)):
        operator.execute(context)
    assert course(broker).at_work(NODE) is waited_for


def test_a_destination_that_was_not_chosen_has_ended_and_is_not_waited_for(
    operator: ConduitSubmitOperator, broker: Broker, context: Any
) -> None:
    context["params"]["destinations"] = ["log:b"]
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    assert course(broker).began_at(NODE)
    assert not course(broker).at_work(NODE)


@pytest.mark.parametrize("said_by", ["the wait", "the application"])
def test_what_is_left_over_starts_a_run_at_once(
    operator: ConduitSubmitOperator,
    broker: Broker,
    context: Any,
    application: Path,
    monkeypatch: pytest.MonkeyPatch,
    triggered: list[TriggerDagRun],
    how: Callable[[str], None],  # noqa: F811
    said_by: str,
) -> None:
    how("forked")
    # Given a node that says that more is left
    if said_by == "the wait":
        monkeypatch.setattr(
            work_needed, "awaited", lambda *_, **__: WorkNeeded(False, "no slot was free", True, again=True)
        )
    else:
        monkeypatch.setattr(work_needed, "awaited", lambda *_, **__: WorkNeeded(True, "micro-batch 1"))
        line = '{"event": "done", "said": "no slot was free", "again": true}'
        application.write_text(f"import sys\nsys.stderr.write('conduit {line}\\n')\n")
    operator.execute(context)
    assert course(broker).again == f"{NODE}: no slot was free"
    # When the acks of the run have ended, then that of the first source starts the next, once, by a name of its own
    assert tasks.ack("toy", "two", "r1", ti=context["ti"])["again"]
    assert not triggered
    for _ in range(2):
        assert tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"])["again"]
    (next_one,) = triggered
    assert next_one.dag_id == "toy"
    assert next_one.run_id == name_of("r1", course(broker).began)
    # But none follows a run that somebody has marked as failed meanwhile
    triggered.clear()
    context["ti"].get_dagrun_state = lambda dag_id, run_id: DagRunState.FAILED
    tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"])
    assert not triggered
    # And a run that left nothing is followed by none
    broker.runs.begin("r1", None, 0)
    for node in ("sources.one", "sources.two", NODE, "destinations.log:b"):
        broker.runs.tell_at_work("r1", node, 0)
    assert not tasks.ack("toy", "one", "r1", follows=True)["again"]


def test_a_node_that_ends_behind_the_acks_starts_the_run_that_follows_itself(
    operator: ConduitSubmitOperator,
    broker: Broker,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    triggered: list[TriggerDagRun],
) -> None:
    broker.runs.tell_at_work("r1", "acks", 0)
    monkeypatch.setattr(work_needed, "awaited", lambda *_, **__: WorkNeeded(False, "done", True))
    operator.execute(context)
    # By the name that the acks would have given it: where they did, the task ends as it would have
    assert [run.run_id for run in triggered] == [name_of("r1", course(broker).began)]
    operator.execute(context)
    assert len(triggered) == 1
    # But not where it had nothing to do
    triggered.clear()
    monkeypatch.setattr(work_needed, "awaited", lambda *_, **__: WorkNeeded(False, "nothing to deliver"))
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    assert not triggered
    # And one that was cleared is followed again
    before = name_of("r1", course(broker).began)
    broker.runs.begin("r1", None, 0)
    assert before != name_of("r1", course(broker).began)


@pytest.mark.parametrize("by", ["acks", "node"])
def test_the_run_that_follows_takes_over_what_is_left_to_read_and_the_chosen_destinations(
    operator: ConduitSubmitOperator,
    broker: Broker,
    context: Any,
    monkeypatch: pytest.MonkeyPatch,
    triggered: list[TriggerDagRun],
    by: str,
) -> None:
    context["params"]["destinations"] = ["out"]
    broker.runs.begin("r1", 100, 0)
    broker.runs.tell_at_work("r1", NODE, 0, "no slot was free")
    if by == "acks":
        tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"], params=context["params"])
    else:
        broker.runs.tell_at_work("r1", "acks", 0)
        monkeypatch.setattr(work_needed, "awaited", lambda *_, **__: WorkNeeded(False, "done", True))
        operator.execute(context)
    assert [run.conf for run in triggered] == [{"max-records": 100, "destinations": ["out"]}]


def test_a_run_that_has_read_all_it_may_is_followed_by_one_that_only_delivers(
    broker: Broker, context: Any, triggered: list[TriggerDagRun]
) -> None:
    broker.runs.begin("r1", 0, 0)
    broker.runs.tell_at_work("r1", NODE, 0, "no slot was free")
    tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"])
    assert [run.conf for run in triggered] == [{"max-records": 0}]
    assert triggered[0].run_after is not None
    assert triggered[0].run_after <= datetime.now(UTC) - timedelta(seconds=1), (
        "it waits for no whole second of SQLite's"
    )


def test_acks_fail_where_the_run_left_their_source_out_when_it_was_asked_last(
    broker: Broker, context: Any, triggered: list[TriggerDagRun]
) -> None:
    # Given a source that could not be asked in the middle of a run that is to be followed
    broker.runs.tell_at_work("r1", NODE, 0, "no slot was free")
    broker.runs.tell_left_out("r1", "one", "SourceError: no such mount")
    # Then its acks fail, and the run is followed all the same
    with pytest.raises(AirflowFailException, match="one was left out of this run: SourceError: no such mount"):
        tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"])
    assert len(triggered) == 1
    tasks.ack("toy", "two", "r1", ti=context["ti"])
    # But not where it was asked well since, though `plan` had left it out
    broker.runs.tell_left_out("r1", "one", "")
    context["ti"].xcom_pull = lambda task_ids: {"left_out": {"one": "SourceError: no such mount"}}
    tasks.ack("toy", "one", "r1", ti=context["ti"])


def test_how_a_task_ended_says_whether_another_run_would_find_more_for_it(
    operator: ConduitSubmitOperator, broker: Broker, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, waits in [
        (WorkNeeded(False, "nothing to deliver"), False),
        (WorkNeeded(False, "it is stopped", over=True), True),
        (WorkNeeded(False, "too early", recovering=True), True),
    ]:
        monkeypatch.setattr(work_needed, "awaited", lambda *_, found=found, **__: found)
        with pytest.raises(AirflowSkipException):
            operator.execute(context)
        assert course(broker).waits(NODE) is waits
    context["params"]["destinations"] = ["log:b"]
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    assert course(broker).waits(NODE)


def test_acks_look_at_deadlines_while_the_run_goes_on(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, spark_connection: str
) -> None:
    from conduit_tasks.micro_batch import acks

    monkeypatch.setattr(acks, "LOOK", 0.0)
    looked: list[Callable[[], None] | str] = []

    def look(pipeline: str, run: str) -> None:
        looked.append(pipeline)
        broker.runs.tell_at_work("r1", NODE, 0)

    monkeypatch.setattr(tasks, "look", look)
    # Given a node that is at work until they have looked
    broker.runs.tell_at_work("r1", NODE, 600.0)
    tasks.ack("toy", "one", "r1")
    assert looked
