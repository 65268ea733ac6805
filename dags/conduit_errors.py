"""No DAG of its own: fails to import where a pipeline file has errors, so that Airflow shows them."""

from conduit_tasks.airflow.errors import raise_findings

raise_findings()
