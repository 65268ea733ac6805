"""Names of Airflow's that Airflow 3.1 has elsewhere than 3.2 and newer: its exceptions and its timetables."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
