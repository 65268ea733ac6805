"""The embedded stack: a Redis server and Airflow's four components as processes on one machine."""
