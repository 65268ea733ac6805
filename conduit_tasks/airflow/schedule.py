"""Schedule of a pipeline's runs in Airflow: its timetable, joined with the asset that wakes it, and how long a run
lasts at most (docs/schedules.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Asset, AssetWatcher

from conduit_tasks.airflow.compat import (
    AssetOrTimeSchedule,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
)
from conduit_tasks.airflow.wake import WakeTrigger
from conduit_tasks.pipeline.names import dag_id
from conduit_tasks.pipeline.schedule import Schedule, is_continuous, parse_schedule
from conduit_tasks.topology import Pipeline

if TYPE_CHECKING:
    from airflow.sdk.bases.timetable import BaseTimetable
    from airflow.timetables.base import Timetable

LONGEST, CONTINUOUS = 3_600.0, 600.0
"""Seconds that a run lasts at most, unless the file says otherwise; the second one under `@continuous`."""
HAND_OVER, SHORTEST = 20.0, 10.0
"""Seconds by which the next run begins before the end of a continuous one, for the time that it may take to be ready;
and seconds between the beginnings of two such runs at least."""


def schedule_of(pipeline: Pipeline) -> BaseTimetable | Timetable | list[Asset] | None:
    """Returns the timetable alone, or joined with the asset whose watcher wakes the pipeline: because there are new
    records, or, under `@continuous`, because no run is under way. Raises ConfigError."""
    if is_continuous(pipeline):
        # Not `ContinuousTimetable`: that begins the next run when the one before has ended.
        timetable: BaseTimetable = DeltaTriggerTimetable(timedelta(seconds=_until_next(drain_limit(pipeline))))
    else:
        when = parse_schedule(pipeline.schedule)
        if when.kind == "none":
            return None if pipeline.wake is None else [_wakes(pipeline)]
        timetable = _timetable(when, pipeline.data_intervals)
        if pipeline.wake is None:
            return timetable
    return AssetOrTimeSchedule(timetable=timetable, assets=[_wakes(pipeline)])


def _wakes(pipeline: Pipeline) -> Asset:
    name = f"{dag_id(pipeline.id)}.wake"
    watcher = AssetWatcher(name=name, trigger=WakeTrigger(pipeline.id, pipeline.digest()))
    return Asset(name, watchers=[watcher])


def drain_limit(pipeline: Pipeline) -> float:
    """Returns the seconds that a run lasts at most before the next one goes on: the pipeline's own, or an hour; ten
    minutes under `@continuous`."""
    if pipeline.drain_limit is not None:
        return pipeline.drain_limit
    return CONTINUOUS if is_continuous(pipeline) else LONGEST


def _until_next(limit: float) -> float:
    """Returns the seconds from the beginning of a continuous run to that of the next one, which takes over from it."""
    return max(limit - HAND_OVER, limit / 2, SHORTEST)


def _timetable(when: Schedule, data_intervals: bool) -> BaseTimetable:
    if when.cron:
        kind = CronDataIntervalTimetable if data_intervals else CronTriggerTimetable
        return kind(when.cron, timezone="UTC")
    every = timedelta(seconds=when.seconds)
    return DeltaDataIntervalTimetable(every) if data_intervals else DeltaTriggerTimetable(every)
