"""The Airflow plugin: the API, the pages and links to them, the timetables for backfills, and the imports before a
fork."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from conduit_tasks.airflow import preload
from conduit_tasks.airflow.links import PipelineLink
from conduit_tasks.airflow.timetable import ReplayDeltaTimetable, ReplayTimetable


class ConduitPlugin(AirflowPlugin):
    """Plugin that every component and every task loads; parts for the API server alone are built when it asks."""

    name = "conduit"
    external_views = [  # noqa: RUF012 - Airflow's own type
        {"name": "Conduit", "href": "/conduit/pages/", "destination": "nav", "url_route": "conduit"},
        {
            "name": "Conduit",
            "href": "/conduit/pages/?dag={DAG_ID}",
            "destination": "dag",
            "url_route": "conduit-pipeline",
        },
    ]
    operator_extra_links = [PipelineLink()]  # noqa: RUF012 - Airflow's own type

    listeners = [preload]  # noqa: RUF012 - Airflow's own type
    timetables = [ReplayTimetable, ReplayDeltaTimetable]  # noqa: RUF012 - Airflow's own type

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        from conduit_tasks.airflow.api.app import app

        return [{"app": app, "url_prefix": "/conduit", "name": "Conduit"}]
