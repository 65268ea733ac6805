"""The API of the Airflow plugin, and what serves its pages."""
