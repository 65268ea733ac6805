"""A pipeline as one step of a DAG: what comes before it, and what comes after it."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, task

from conduit_tasks.airflow import ConduitPipeline

with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):

    @task
    def close_the_books() -> str:
        return "closed"

    @task
    def tell_the_team() -> str:
        return "everything that was there is delivered"

    close_the_books() >> ConduitPipeline("orders") >> tell_the_team()
