"""Each form of a schedule is a timetable that survives Airflow's serialisation; what wakes a pipeline goes with it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.api.datamodels._generated import DagRunType
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable
from pendulum import datetime as moment

from conduit_tasks.airflow import tasks
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.wake import WakeTrigger
from conduit_tasks.micro_batch import plan
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.pipeline.names import AFTER
from tests.airflow.conftest import write_pipeline
from tests.micro_batch.harness import run_until_quiet
from tests.redis_server import RedisServer
from tests.waiting import until

FORMS = [
    ('"*/5 * * * *"', CronTriggerTimetable, 3600),
    ('"@hourly"', CronTriggerTimetable, 3600),
    ("30s", DeltaTriggerTimetable, 3600),
    ('"@daily"\n    data-intervals: true', CronDataIntervalTimetable, 3600),
    ("90m\n    data-intervals: true", DeltaDataIntervalTimetable, 3600),
]
WOKEN = [(f"{text}\n    wake: [one, two]", kind, longest) for text, kind, longest in FORMS]


def live(home: Path, schedule: str) -> tuple[Any, Any]:
    """The DAG of a pipeline with this schedule, and what Airflow's scheduler makes of it."""
    path = write_pipeline(home, schedule="30s")
    path.write_text(path.read_text().replace('schedule: "30s"', f"schedule: {schedule}"))
    dag, *_ = load_dags()
    return dag, DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))


@pytest.mark.parametrize(("schedule", "kind", "longest"), FORMS)
def test_a_schedule_becomes_a_timetable_that_never_catches_up(
    home: Path, schedule: str, kind: type, longest: float
) -> None:
    dag, stored = live(home, schedule)
    assert type(stored.timetable) is kind
    assert (stored.max_active_runs, stored.catchup) == (1, False)
    assert dag.get_task("destinations.out").drain_limit == longest


@pytest.mark.parametrize(("schedule", "kind", "longest"), WOKEN)
def test_what_wakes_a_pipeline_is_joined_with_its_timetable(
    home: Path, schedule: str, kind: type, longest: float
) -> None:
    dag, stored = live(home, schedule)
    assert type(stored.timetable) is AssetOrTimeSchedule
    assert type(stored.timetable.timetable) is kind
    # Then the time is the timetable's, as without
    timed = stored.timetable.next_dagrun_info(
        last_automated_data_interval=None, restriction=TimeRestriction(moment(2024, 1, 1), None, catchup=False)
    )
    assert timed is not None
    assert timed.data_interval.end <= timed.run_after
    # And a storm of wake-ups is one run, and one to come
    assert (stored.max_active_runs, stored.catchup) == (1, False)
    assert dag.get_task("destinations.out").drain_limit == longest


@pytest.mark.parametrize(
    ("more", "limit", "apart"),
    [("", 600, 580), ("drain-limit: 2m", 120, 100), ("drain-limit: 30s", 30, 15), ("drain-limit: 5s", 5, 10)],
)
def test_under_continuous_the_next_run_begins_before_the_one_before_has_to_end(
    home: Path, more: str, limit: float, apart: float
) -> None:
    dag, stored = live(home, f'"@continuous"\n    {more}')
    assert (stored.max_active_runs, stored.catchup) == (2, False)
    assert dag.get_task("destinations.out").drain_limit == limit
    # By the time, and at once where none is under way
    assert type(stored.timetable) is AssetOrTimeSchedule
    ((_, asset),) = stored.timetable.asset_condition.iter_assets()
    assert [watcher.trigger["classpath"].rpartition(".")[2] for watcher in asset.watchers] == ["WakeTrigger"]
    first = DataInterval.exact(moment(2026, 11, 20))
    after = stored.timetable.next_dagrun_info(
        last_automated_data_interval=first, restriction=TimeRestriction(moment(2024, 1, 1), None, catchup=True)
    )
    assert (after.run_after - first.end).total_seconds() == apart


@pytest.mark.parametrize(
    ("run_type", "run_id", "by_hand"),
    [
        ("scheduled", "scheduled__2026", False),
        ("asset_triggered", "asset_triggered__2026", False),
        ("operator_triggered", f"{AFTER}0123", False),
        ("manual", f"{AFTER}0123", False),
        ("manual", "conduit__1", True),
        ("backfill", "backfill__2026", True),
    ],
)
def test_only_runs_that_the_schedule_brings_about_last(
    home: Path, monkeypatch: pytest.MonkeyPatch, run_type: str, run_id: str, by_hand: bool
) -> None:
    told: list[bool] = []

    def planned(*_: Any, by_hand: bool, **__: Any) -> plan.PlanResult:
        told.append(by_hand)
        return plan.PlanResult(None, False, "nothing new")

    monkeypatch.setattr(plan, "plan_run", planned)
    write_pipeline(home)
    tasks.plan("toy", run_id, {}, SimpleNamespace(run_type=DagRunType(run_type), run_id=run_id))
    assert told == [by_hand]


def test_data_intervals_reach_from_one_time_to_the_next(home: Path) -> None:
    _, stored = live(home, '"@daily"\n    data-intervals: true')
    day = DataInterval(moment(2026, 11, 20), moment(2026, 11, 21))
    after = stored.timetable.next_dagrun_info(
        last_automated_data_interval=day, restriction=TimeRestriction(moment(2024, 1, 1), None, catchup=True)
    )
    assert (after.data_interval, after.run_after) == (
        DataInterval(moment(2026, 11, 21), moment(2026, 11, 22)),
        moment(2026, 11, 22),
    )


def test_airflow_keeps_one_trigger_for_a_version_of_a_pipeline_and_no_secret(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.trigger import Trigger

    monkeypatch.setenv("PASSWORD", "correct-horse")
    path = write_pipeline(home)
    path.write_text(
        path.read_text()
        .replace('schedule: "30s"', 'schedule: "@daily"\n    wake: [one]')
        .replace('path: "more/*.jsonl"', 'path: "more/${PASSWORD}.jsonl"')
    )

    def watcher() -> tuple[str, Any]:
        dag, *_ = load_dags()
        (asset,) = dag.timetable.asset_condition.objects  # type: ignore[attr-defined]
        (only,) = asset.watchers
        assert asset.name == only.name
        return only.name, only.trigger

    (name, trigger), (again, same) = watcher(), watcher()
    # Then it is called and kept alike at every parse
    assert name == again == "toy.wake"
    hashed = [WakeTrigger.hash(*t.serialize()) for t in (trigger, same)]
    assert hashed[0] == hashed[1]
    kind, arguments = trigger.serialize()
    assert (kind, arguments) == (
        "conduit_tasks.airflow.wake.WakeTrigger",
        {"pipeline_id": "toy", "version": get_pipeline("toy").digest()},
    )
    # And comes back from Airflow's database as it was
    row = Trigger.from_object(trigger)
    assert WakeTrigger(**row.kwargs).serialize() == trigger.serialize()
    stored = json.dumps(DagSerialization.to_dict(load_dags()[0]))
    assert "correct-horse" not in stored + repr(trigger)
    # And a changed file has another one, so that it is looked at again
    path.write_text(path.read_text().replace("wake: [one]", "wake: [two]"))
    (name, changed) = watcher()
    assert name == "toy.wake"
    assert WakeTrigger.hash(*changed.serialize()) != hashed[0]


async def _take(trigger: WakeTrigger, change: Callable[[], object], seconds: float = 300) -> Any:
    """The first event after `change`, which comes once the trigger has looked and seen nothing."""
    events = trigger.run()
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await asyncio.to_thread(change)
    try:
        return (await asyncio.wait_for(waiting, seconds)).payload
    finally:
        await events.aclose()
        await trigger.cleanup()


def drop(home: Path) -> None:
    (home / "in" / "side").write_text('{"n": 1}\n')
    (home / "in" / "side").rename(home / "in" / "a.jsonl")


@pytest.fixture
def woken(home: Path) -> WakeTrigger:
    """The trigger of a pipeline that has read everything there was."""
    live(home, '"@daily"\n    wake: {look: 1s, pause: 1s}')
    (home / "in").mkdir()
    (home / "more").mkdir()
    (home / "in" / "0.jsonl").write_text('{"n": 0}\n')
    run_until_quiet("toy")
    return WakeTrigger("toy", "any")


def test_a_file_that_is_dropped_is_an_event(home: Path, woken: WakeTrigger) -> None:
    payload = asyncio.run(_take(woken, lambda: drop(home)))
    assert payload == {"pipeline": "toy", "reason": "new in one"}


def test_a_redis_that_goes_and_comes_back_ends_no_trigger_and_is_told_once(
    home: Path, woken: WakeTrigger, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:

        redis_server.kill()
        drop(home)
        until(lambda: "not looked at" in caplog.text)
        redis_server.start()

    with caplog.at_level(logging.WARNING, "conduit_tasks.airflow.wake"):
        payload = asyncio.run(_take(woken, fail))
    assert payload["reason"] == "new in one"
    told = [said for r in caplog.records if "not looked at" in (said := r.getMessage())]
    assert len(told) == len(set(told))


def test_a_pipeline_whose_file_is_gone_wakes_nobody(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        trigger = WakeTrigger("nobody", "any")
        waiting = asyncio.ensure_future(anext(trigger.run()))
        deadline = time.monotonic() + 240
        while "no pipeline 'nobody'" not in caplog.text:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        assert not waiting.done()
        waiting.cancel()

    with caplog.at_level(logging.WARNING, "conduit_tasks.airflow.wake"):
        asyncio.run(look())
    assert "no pipeline 'nobody'" in caplog.text
