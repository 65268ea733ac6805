"""When Airflow starts a pipeline's runs: its timetable, joined with what wakes it (docs/schedules.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import (
    Asset,
    AssetOrTimeSchedule,
    AssetWatcher,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
)
from airflow.timetables.simple import ContinuousTimetable

from conduit_tasks.airflow.wake import WakeTrigger
from conduit_tasks.pipeline.names import dag_id
from conduit_tasks.pipeline.schedule import Schedule, is_continuous, parse_schedule
from conduit_tasks.pipeline.topology import Pipeline

if TYPE_CHECKING:
    from airflow.sdk.bases.timetable import BaseTimetable
    from airflow.timetables.base import Timetable

LONGEST, CONTINUOUS = 3_600.0, 600.0
"""Seconds that a run lasts at most, unless the file says otherwise."""


def schedule_of(pipeline: Pipeline) -> BaseTimetable | Timetable:
    """The timetable alone, or joined with the asset whose watcher wakes the pipeline. Raises ConfigError."""
    when = parse_schedule(pipeline.schedule)
    if when.kind == "continuous":
        return ContinuousTimetable()
    timetable = _timetable(when, pipeline.data_intervals)
    if pipeline.wake is None:
        return timetable
    name = f"{dag_id(pipeline.id)}.wake"
    watcher = AssetWatcher(name=name, trigger=WakeTrigger(pipeline.id, pipeline.digest()))
    return AssetOrTimeSchedule(timetable=timetable, assets=[Asset(name, watchers=[watcher])])


def drain_limit(pipeline: Pipeline) -> float:
    """Seconds that a run lasts at most before the next one goes on: its own, or an hour; ten minutes under
    `@continuous`."""
    if pipeline.drain_limit is not None:
        return pipeline.drain_limit
    return CONTINUOUS if is_continuous(pipeline) else LONGEST


def _timetable(when: Schedule, data_intervals: bool) -> BaseTimetable:
    if when.cron:
        kind = CronDataIntervalTimetable if data_intervals else CronTriggerTimetable
        return kind(when.cron, timezone="UTC")
    every = timedelta(seconds=when.seconds)
    return DeltaDataIntervalTimetable(every) if data_intervals else DeltaTriggerTimetable(every)
