"""`<pipeline>.replay` in Airflow: intervals for backfills, nothing by itself; a cleared task sends again (X3)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.timetables.base import TimeRestriction

from conduit_tasks.airflow.replay import build_replay_dag, deliver_run, prepare_run, replay_timetable
from conduit_tasks.pipeline.load import get_pipeline
from tests.delivery.shelf import shelves  # noqa: F401 - a fixture
from tests.micro_batch.harness import run_until_quiet
from tests.replay.test_replay import Place


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
    dag_run = SimpleNamespace(
        run_type="backfill",
        data_interval_start=datetime(2013, 3, 2, tzinfo=UTC),
        data_interval_end=datetime(2013, 3, 3, tzinfo=UTC),
    )
    dag = build_replay_dag(get_pipeline("p"))
    task = dag.get_task("destinations.a")

    def go(function: Any, try_number: int, max_tries: int, **more: Any) -> Any:
        ti = SimpleNamespace(try_number=try_number, max_tries=max_tries)
        params = {"destinations": [], "what": "all", **more.pop("params", {})}
        return function(
            pipeline_id="p", run_id="b", params=params, ti=ti, task=task, dag_run=more.pop("dag_run", dag_run), **more
        )

    retries = int(task.retries or 0)
    looked = go(prepare_run, 1, retries, params={"dry-run": True})
    assert (looked["chosen"], looked["would"]) == (24, {"a": 24})
    with pytest.raises(AirflowSkipException, match="dry run"):
        go(deliver_run, 1, retries, destination="a", params={"dry-run": True})
    assert go(prepare_run, 1, retries)["chosen"] == 24
    assert go(deliver_run, 1, retries, destination="a")["delivered"] == 24
    # A retry of what has ended sends nothing, a clear all of it
    assert go(deliver_run, 2, retries, destination="a")["delivered"] == 0
    assert go(deliver_run, 2, retries + 1, destination="a")["delivered"] == 24
    assert place.got("a") == [*range(48), *range(24, 48), *range(24, 48)]
    with pytest.raises(AirflowFailException, match="no destination x"):
        go(deliver_run, 1, retries, destination="a", params={"destinations": ["x"]})
    with pytest.raises(AirflowFailException, match="give `from` and `to`"):
        go(prepare_run, 1, retries, dag_run=SimpleNamespace(run_type="manual"))
    place.add("z")
    with pytest.raises(AirflowSkipException):
        go(deliver_run, 1, retries, destination="a", params={"destinations": ["z"]})
