"""Differences between the versions of Airflow that are supported: where 3.1 has its exceptions and its timetables, and
what 3.3 resumes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow import __version__
from packaging.version import Version

__all__ = [
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSkipException",
    "AssetOrTimeSchedule",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DeltaDataIntervalTimetable",
    "DeltaTriggerTimetable",
]

RESUMES = Version(__version__).release >= (3, 3)
"""Whether a retried task of `SparkSubmitOperator` may resume the job of the one before, unless it is told not to."""

if TYPE_CHECKING:
    from airflow.sdk import (
        AssetOrTimeSchedule,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
    )
    from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowSkipException
else:
    try:
        from airflow.sdk import (
            AssetOrTimeSchedule,
            CronDataIntervalTimetable,
            CronTriggerTimetable,
            DeltaDataIntervalTimetable,
            DeltaTriggerTimetable,
        )
    except ImportError:
        from airflow.timetables.assets import AssetOrTimeSchedule
        from airflow.timetables.interval import CronDataIntervalTimetable, DeltaDataIntervalTimetable
        from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable
    try:
        from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowSkipException
    except ImportError:
        from airflow.exceptions import AirflowFailException, AirflowNotFoundException, AirflowSkipException
