"""The Airflow DAGs of all pipeline files: one DAG per pipeline."""

from airflow.sdk import get_parsing_context

from conduit_tasks.airflow.factory import load_dags

for dag in load_dags(only=get_parsing_context().dag_id):
    globals()[dag.dag_id] = dag
