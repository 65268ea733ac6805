"""A DAG that waits, without a worker's slot, until everything that was there when it began is delivered."""

from __future__ import annotations

from airflow.sdk import DAG, task

from conduit_tasks.airflow import DeliveredSensor

with DAG("wait", schedule=None, catchup=False):

    @task
    def compare() -> str:
        return "compared"

    delivered = DeliveredSensor(
        task_id="delivered",
        pipeline_id="orders",
        destinations=["lake"],
        until="{{ dag_run.run_after }}",
        timeout=3_600,
    )
    delivered >> compare()
