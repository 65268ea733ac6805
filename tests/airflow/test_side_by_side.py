"""Tasks of a run tell each other through the broker that they are at work, and start the next run where they must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException, DagRunTriggerException

from conduit_tasks.airflow import tasks
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.under_way import UnderWay
from conduit_tasks.micro_batch import draining, work
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.micro_batch.work import WorkNeeded
from tests.airflow.conftest import write_pipeline

NODE = "destinations.out"


@pytest.fixture
def broker(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    # The other nodes never begin here
    monkeypatch.setattr(draining, "NEVER", 0.0)
    monkeypatch.setattr(draining, "BEGINS_WITHIN", 0.0)
    write_pipeline(home)
    broker = open_broker("toy")
    broker.begin_run("r1", 0, 0)
    yield broker
    broker.close()


@pytest.fixture
def operator(spark_connection: str, application: Path, broker: Broker) -> ConduitSubmitOperator:
    return ConduitSubmitOperator(task_id="t", pipeline_id="toy", node=NODE, drain_limit=60.0)


def course(broker: Broker) -> UnderWay:
    found = broker.under_way("r1")
    assert found is not None
    return found


def test_a_task_is_at_work_until_it_ends(
    operator: ConduitSubmitOperator, broker: Broker, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def awaited(*_: Any, **__: Any) -> WorkNeeded:
        seen.append(course(broker).at_work(NODE))
        return WorkNeeded(False, "nothing to deliver")

    monkeypatch.setattr(work, "awaited", awaited)
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

    monkeypatch.setattr(work, "awaited", awaited)
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
    said_by: str,
) -> None:
    # Given a node that says that more is left
    if said_by == "the wait":
        monkeypatch.setattr(work, "awaited", lambda *_, **__: WorkNeeded(False, "no slot was free", True, again=True))
    else:
        monkeypatch.setattr(work, "awaited", lambda *_, **__: WorkNeeded(True, "micro-batch 1"))
        line = '{"event": "done", "said": "no slot was free", "again": true}'
        application.write_text(f"import sys\nsys.stderr.write('conduit {line}\\n')\n")
    operator.execute(context)
    assert course(broker).again == f"{NODE}: no slot was free"
    # When the acks of the run have ended, then that of the first source starts the next, by a name of its own
    assert tasks.ack("toy", "two", "r1")["again"]
    with pytest.raises(DagRunTriggerException) as raised:
        tasks.ack("toy", "one", "r1", follows=True)
    with pytest.raises(DagRunTriggerException) as again:
        tasks.ack("toy", "one", "r1", follows=True)
    assert raised.value.trigger_dag_id == "toy"
    assert raised.value.skip_when_already_exists
    assert raised.value.dag_run_id == again.value.dag_run_id
    # But none follows a run that somebody has marked as failed meanwhile
    context["ti"].get_dagrun_state = lambda dag_id, run_id: "failed"
    tasks.ack("toy", "one", "r1", follows=True, ti=context["ti"])
    # And a run that left nothing is followed by none
    broker.begin_run("r1", 0, 0)
    for node in ("sources.one", "sources.two", NODE, "destinations.log:b"):
        broker.tell_at_work("r1", node, 0)
    assert not tasks.ack("toy", "one", "r1", follows=True)["again"]


def test_a_node_that_ends_behind_the_acks_starts_the_run_that_follows_itself(
    operator: ConduitSubmitOperator, broker: Broker, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.tell_at_work("r1", "acks", 0)
    monkeypatch.setattr(work, "awaited", lambda *_, **__: WorkNeeded(False, "done", True))
    with pytest.raises(DagRunTriggerException) as raised:
        operator.execute(context)
    # By the name that the acks would have given it
    assert raised.value.dag_run_id == tasks.next_run("toy", "r1", course(broker).began, None).dag_run_id
    # But not where it had nothing to do, nor where the run has read all that it may
    monkeypatch.setattr(work, "awaited", lambda *_, **__: WorkNeeded(False, "nothing to deliver"))
    with pytest.raises(AirflowSkipException):
        operator.execute(context)
    # And one that was cleared is followed anew
    broker.begin_run("r1", 0, 0)
    assert raised.value.dag_run_id != tasks.next_run("toy", "r1", course(broker).began, None).dag_run_id


def test_a_run_of_so_many_records_is_followed_by_one_of_the_rest(broker: Broker) -> None:
    broker.begin_run("r1", 100, 0)
    broker.tell_at_work("r1", NODE, 0, "no slot was free")
    with pytest.raises(DagRunTriggerException) as raised:
        tasks.ack("toy", "one", "r1", follows=True)
    assert raised.value.conf == {"max-records": 100}


def test_how_a_task_ended_says_whether_another_run_would_find_more_for_it(
    operator: ConduitSubmitOperator, broker: Broker, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, waits in [
        (WorkNeeded(False, "nothing to deliver"), False),
        (WorkNeeded(False, "it is stopped", over=True), True),
        (WorkNeeded(False, "too early", recovering=True), True),
    ]:
        monkeypatch.setattr(work, "awaited", lambda *_, found=found, **__: found)
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
    monkeypatch.setattr(tasks, "look", lambda pipeline, run: looked.append(pipeline))
    broker.tell_at_work("r1", "destinations.out", 2.0)
    tasks.ack("toy", "one", "r1")
    assert looked
