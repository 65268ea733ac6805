"""The Airflow plugin: an API that says how far each pipeline is."""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin


class ConduitPlugin(AirflowPlugin):
    """Loaded by every component and every task, so what only the API server needs is built when it asks."""

    name = "conduit"

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        from conduit_tasks.airflow.status_api import app

        return [{"app": app, "url_prefix": "/conduit", "name": "Conduit"}]
