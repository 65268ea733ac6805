#!/bin/sh
# Startup script of an MWAA environment: runs on the scheduler, the workers and the web server, and sets their environment.
# In the bucket: dags/conduit_dags.py, dags/conduit_errors.py, dags/conduit/include/….
export CONDUIT_HOME=/usr/local/airflow/dags/conduit
export CONDUIT_SPOOL=s3://feeds/spool
export CONDUIT_DEAD_LETTERS=s3://feeds/dead-letters
# The execution role may read these two secrets, and the objects below s3://feeds.
CONDUIT_REDIS_URL=$(aws secretsmanager get-secret-value --secret-id conduit/redis-url --query SecretString --output text)
AIRFLOW_CONN_SPARK_DEFAULT=$(aws secretsmanager get-secret-value --secret-id conduit/spark --query SecretString --output text)
export CONDUIT_REDIS_URL AIRFLOW_CONN_SPARK_DEFAULT
