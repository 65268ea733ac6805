"""The Airflow DAGs of all pipeline files: of each pipeline one, and one that sends its records again."""

from airflow.sdk import get_parsing_context

from conduit_tasks.airflow.factory import load_dags

for dag in load_dags(only=get_parsing_context().dag_id):
    globals()[dag.dag_id] = dag
