"""`<pipeline>.resend` in Airflow: a trigger redrives what its filters choose (X2), a backfill replays its intervals
(X3), a cleared task sends again, and nothing goes by itself."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, DownstreamTasksSkipped
from airflow.timetables.base import TimeRestriction

from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.resend import (
    build_resend_dag,
    deliver_run,
    plan_run,
    redrive_run,
    replay_timetable,
    what_of,
)
from conduit_tasks.pipeline.load import get_pipeline
from tests.delivery import shelf
from tests.delivery.shelf import shelves  # noqa: F401 - a fixture
from tests.micro_batch.harness import run_until_quiet
from tests.replay.test_replay import Place

BACKFILL = SimpleNamespace(
    run_type="backfill",
    data_interval_start=datetime(2013, 3, 2, tzinfo=UTC),
    data_interval_end=datetime(2013, 3, 3, tzinfo=UTC),
)


@pytest.fixture
def place(home: Path) -> shelf.Place:
    place = shelf.Place(home)
    place.feed([(n, f"k{n}") for n in range(5)])
    place.refuse(1, 3)
    run_until_quiet("p")
    place.refuse()
    return place


def given(**params: Any) -> dict[str, Any]:
    return {**build_resend_dag(get_pipeline("p")).params.dump(), **params}


def redrive(**params: Any) -> list[dict[str, Any]]:
    """What a triggered run does: its plan leads to `redrive` alone."""
    run = SimpleNamespace(triggering_user_name="ada", run_type="manual")
    pushed: dict[str, Any] = {}
    about = {"pipeline_id": "p", "params": given(**params), "run_id": "manual__1", "dag_run": run}
    about["ti"] = SimpleNamespace(xcom_push=pushed.__setitem__, max_tries=2)
    assert plan_run(**about) == (["redrive"], {"what": "dead-letters"})
    with pytest.raises(AirflowSkipException):
        deliver_run(destination="d", **about)
    try:
        return redrive_run(**about)
    except AirflowFailException:
        if pushed:
            assert pushed["return_value"][0]["again"]
        raise


@pytest.mark.proves("X2")
def test_what_its_parameters_choose_goes_again(place: shelf.Place) -> None:
    assert redrive(**{"dry-run": True}) == [{"destination": "d", "letters": 2, "parked": 0}]
    assert len(place.got()) == 3
    (outcome,) = redrive(keys=["k3"])
    assert (outcome["redriven"], place.got()[-1]) == (1, 3)
    assert redrive(destinations=["_pipeline"]) == []
    (outcome,) = redrive(destinations=["_pipeline", "d"], classes=["http 400"], what="dead-letters")
    assert (outcome["redriven"], place.got()[-1]) == (1, 1)
    assert redrive() == []


def test_the_destination_is_chosen_as_the_earlier_dag_took_it_too(place: shelf.Place) -> None:
    assert redrive(destination="_pipeline") == []
    (outcome,) = redrive(destination="d")
    assert outcome["redriven"] == 2


def test_a_run_that_makes_dead_letters_again_fails_and_says_how_many(place: shelf.Place) -> None:
    place.refuse(3)
    with pytest.raises(AirflowFailException, match="1 of them failed again"):
        redrive()
    assert place.got()[-1] == 1


def test_a_wrong_parameter_fails_at_once(place: shelf.Place) -> None:
    with pytest.raises(AirflowFailException, match="since"):
        redrive(since="yesterday")


def test_every_pipeline_has_one_and_nothing_schedules_it(place: shelf.Place) -> None:
    (dag,) = load_dags(only="p.resend")
    assert (dag.dag_id, sorted(dag.task_ids)) == ("p.resend", ["destinations.d", "plan", "redrive"])
    assert dag.get_task("plan").downstream_task_ids == {"destinations.d", "redrive"}
    assert [d.dag_id for d in load_dags()] == ["p", "p.resend"]


@pytest.mark.parametrize("follow", [[], ["redrive"], ["destinations.d"]])
def test_the_result_of_the_plan_is_kept_and_only_what_it_leads_to_runs(place: shelf.Place, follow: list[str]) -> None:
    dag = build_resend_dag(get_pipeline("p"))
    plan = dag.get_task("plan")
    plan.python_callable, plan.op_kwargs = (lambda: (follow, {"read": 9})), {}
    pushed: dict[str, Any] = {}

    def push(key: str, value: Any) -> None:
        pushed[key] = value

    ti = SimpleNamespace(task=plan, map_index=-1, xcom_push=push)
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        plan.execute({"ti": ti})
    assert pushed["return_value"] == {"read": 9}
    names = {name for name, _ in skipped.value.tasks}
    assert names == {"redrive", "destinations.d"} - set(follow)


@pytest.mark.parametrize(
    ("params", "run_type", "what"),
    [
        ({}, "manual", "dead-letters"),
        ({}, "backfill", "missing"),
        ({"what": "all"}, "backfill", "all"),
        ({"from": "2013-03-01", "to": "2013-03-02"}, "manual", "missing"),
        ({"what": "dead-letters"}, "manual", "dead-letters"),
        ({"what": "failed"}, "manual", "failed"),
    ],
)
def test_a_run_with_an_interval_replays_and_one_without_redrives(
    params: dict[str, Any], run_type: str, what: str
) -> None:
    assert what_of(params, run_type) == what


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "run_type", "why"),
    [
        ({"what": "all"}, "manual", "give `from` and `to`"),
        ({"from": "2013-03-01"}, "manual", "give both"),
        ({"what": "dead-letters"}, "backfill", "dead letters have no interval"),
        ({"what": "dead-letters", "from": "2013-03-01", "to": "2013-03-02"}, "manual", "dead letters have no interval"),
        ({"classes": ["http 400"]}, "backfill", "`classes` chooses dead letters"),
        ({"micro-batches": [1], "from": "2013-03-01", "to": "2013-03-02"}, "manual", "`micro-batches` chooses"),
    ],
)
def test_parameters_that_do_not_go_together_send_nothing(
    place: shelf.Place, params: dict[str, Any], run_type: str, why: str
) -> None:
    run = SimpleNamespace(run_type=run_type)
    with pytest.raises(AirflowFailException, match=why):
        plan_run(pipeline_id="p", params=given(**params), run_id="r", ti=SimpleNamespace(max_tries=2), dag_run=run)


@pytest.mark.proves("X3")
@pytest.mark.parametrize("interval", ["@daily", "1d"])
def test_the_scheduler_is_told_nothing_and_a_backfill_gets_whole_intervals(interval: str) -> None:
    timetable = replay_timetable(interval)
    day = pendulum.datetime(2013, 3, 1)
    asked = {"last_automated_data_interval": None}
    assert timetable.next_dagrun_info(**asked, restriction=TimeRestriction(day, None, True)) is None
    info = timetable.next_dagrun_info(**asked, restriction=TimeRestriction(day, day.add(days=3), True))
    assert info is not None
    assert (info.data_interval.start, info.data_interval.end) == (day, day.add(days=1))


@pytest.mark.proves("X3")
def test_a_backfill_run_delivers_its_interval_and_again_only_where_a_success_was_cleared(home: Path) -> None:
    place = Place(home)
    place.feed(48)
    run_until_quiet("p")
    dag = build_resend_dag(get_pipeline("p"))
    task = dag.get_task("destinations.a")

    def go(function: Any, try_number: int, max_tries: int, **more: Any) -> Any:
        ti = SimpleNamespace(try_number=try_number, max_tries=max_tries)
        params = given(**{"what": "all", **more.pop("params", {})})
        return function(pipeline_id="p", run_id="b", params=params, ti=ti, task=task, dag_run=BACKFILL, **more)

    retries = int(task.retries or 0)
    follow, looked = go(plan_run, 1, retries, params={"dry-run": True})
    assert (follow, looked["chosen"], looked["would"]) == ([], 24, {"a": 24})
    with pytest.raises(AirflowSkipException):
        go(deliver_run, 1, retries, destination="a", params={"dry-run": True})
    follow, found = go(plan_run, 1, retries)
    assert (follow, found["chosen"]) == (["destinations.a"], 24)
    assert go(deliver_run, 1, retries, destination="a")["delivered"] == 24
    # A retry of what has ended sends nothing, a clear all of it
    assert go(deliver_run, 2, retries, destination="a")["delivered"] == 0
    assert go(deliver_run, 2, retries + 1, destination="a")["delivered"] == 24
    assert place.got("a") == [*range(48), *range(24, 48), *range(24, 48)]
    with pytest.raises(AirflowFailException, match="no destination x"):
        go(deliver_run, 1, retries, destination="a", params={"destinations": ["x"]})
    with pytest.raises(AirflowFailException, match="no destination _pipeline"):
        go(plan_run, 1, retries, params={"destinations": ["_pipeline"]})
    place.add("z")
    with pytest.raises(AirflowSkipException):
        go(deliver_run, 1, retries, destination="a", params={"destinations": ["z"]})
