"""Timetables of `<pipeline>.resend`: data intervals for backfills, no runs of their own."""

from __future__ import annotations

from typing import Any

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable


class _OnlyBackfills(Timetable):
    """Timetable with runs only for a backfill, which sets a latest date; the scheduler sets none and gets no run."""

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if restriction.latest is None:
            return None
        return super().next_dagrun_info(  # type: ignore[safe-super]  # the interval timetable beside it
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )


class ReplayTimetable(_OnlyBackfills, CronDataIntervalTimetable):
    """Intervals between the fires of a cron expression, in UTC."""

    def __init__(self, cron: str, timezone: Any = "UTC") -> None:
        super().__init__(cron, timezone=timezone)


class ReplayDeltaTimetable(_OnlyBackfills, DeltaDataIntervalTimetable):
    """Intervals of one length."""
