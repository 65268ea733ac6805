"""The pipeline file: model, validation, topology, explain. Imports no Airflow, Spark or Redis."""
