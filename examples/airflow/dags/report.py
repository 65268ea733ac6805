"""A DAG that is scheduled on what a pipeline delivers, and sees how much that was."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, task

with DAG("report", schedule=[Asset("orders-in-the-lake")], catchup=False):

    @task
    def count(triggering_asset_events: Any = None) -> int:
        return sum(e.extra["counts"]["delivered"] for events in triggering_asset_events.values() for e in events)

    count()
