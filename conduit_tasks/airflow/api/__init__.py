"""The API and the pages of the Airflow plugin."""
