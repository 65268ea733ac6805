"""A DAG that looks after dead letters: it sends those again that a server's outage has made."""

from __future__ import annotations

from datetime import datetime

from airflow.sdk import DAG, task

from conduit_tasks.airflow import ConduitHook

with DAG("again", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False):

    @task
    def send_again() -> str:
        hook = ConduitHook()
        dead = sum(destination["dead"] for destination in hook.status("orders")["destinations"])
        if not dead:
            return "nothing to send again"
        return str(hook.redrive("orders", classes=["http 500", "http 503", "timeout", "unavailable"]))

    send_again()
