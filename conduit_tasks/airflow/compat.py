"""Names of Airflow's that Airflow 3.1 has elsewhere than 3.2 and newer: its exceptions and its timetables."""

from __future__ import annotations

try:
    from airflow.sdk import (
        AssetOrTimeSchedule,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeltaDataIntervalTimetable,
        DeltaTriggerTimetable,
    )
except ImportError:
    from airflow.timetables.assets import AssetOrTimeSchedule  # type: ignore[assignment]
    from airflow.timetables.interval import (  # type: ignore[assignment]
        CronDataIntervalTimetable,
        DeltaDataIntervalTimetable,
    )
    from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable  # type: ignore[assignment]

try:
    from airflow.sdk.exceptions import AirflowFailException, AirflowNotFoundException, AirflowSkipException
except ImportError:
    from airflow.exceptions import (  # type: ignore[assignment]
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )

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
