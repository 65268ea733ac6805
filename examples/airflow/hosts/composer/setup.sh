#!/bin/sh
# Sets up a Cloud Composer environment with Airflow 3.1 or newer: ./setup.sh ENVIRONMENT LOCATION BUCKET
# BUCKET is the environment's own. Called in the project's folder, which has include/ and dags/.
set -eu
environment=$1 location=$2 bucket=$3
gcloud composer environments update "$environment" --location "$location" \
  --update-pypi-package "conduit-tasks"
gcloud composer environments update "$environment" --location "$location" \
  --update-env-variables "CONDUIT_HOME=/home/airflow/gcs/dags/conduit,CONDUIT_SPOOL=gs://feeds/spool,CONDUIT_DEAD_LETTERS=gs://feeds/dead-letters"
# Addresses with a password are secrets: CONDUIT_REDIS_URL names a Redis of the network (Memorystore, with persistence), and
# `spark_default` is a secret airflow-connections-spark_default of Secret Manager, the environment's secrets backend.
gcloud composer environments update "$environment" --location "$location" \
  --update-env-variables "CONDUIT_REDIS_URL=redis://10.0.0.3:6379/0"
gcloud storage cp dags/conduit_dags.py dags/conduit_errors.py "gs://$bucket/dags/"
gcloud storage cp --recursive include "gs://$bucket/dags/conduit/"
