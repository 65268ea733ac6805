"""The embedded stack: a Redis server and Airflow's four components as processes of our own, for one machine."""
