"""The Airflow DAGs of all pipeline files: one DAG per pipeline, and one that sends its dead letters again."""

from airflow.sdk import get_parsing_context

from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.redrive import load_redrive_dags

only = get_parsing_context().dag_id
for dag in [*load_dags(only), *load_redrive_dags(only)]:
    globals()[dag.dag_id] = dag
