# One image for Airflow's components, Spark's master and workers, the gateway and the demo. BASE_IMAGE: Debian 12 with
# Python 3.11, ca-certificates and tini-like init from the engine (`init: true`).
ARG BASE_IMAGE=python:3.11.13-slim-bookworm
FROM ${BASE_IMAGE}

# A machine's own proxy or package index; empty where it has none. They stay in no layer's environment.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT

RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates openjdk-17-jre-headless procps \
 && rm -rf /var/lib/apt/lists/* \
 && ln -s "$(dirname "$(dirname "$(readlink -f /usr/bin/java)")")" /opt/java

ENV PATH=/opt/venv/bin:$PATH \
    JAVA_HOME=/opt/java \
    SPARK_HOME=/opt/spark \
    AIRFLOW_HOME=/opt/airflow \
    CONDUIT_HOME=/opt/conduit \
    CONDUIT_SPOOL=/var/lib/conduit/spool \
    CONDUIT_DEAD_LETTERS=/var/lib/conduit/dead-letters \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

WORKDIR /opt/build
COPY requirements.txt ./
# The jars' times are whole seconds, which every way of moving an image keeps: the class-data archive is known by them.
RUN python3 -m venv /opt/venv \
 && pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements.txt \
 && ln -s "$(python -c 'import importlib.util as u; print(u.find_spec("pyspark").submodule_search_locations[0])')" /opt/spark \
 && touch -d @1700000000 /opt/spark/jars/*

# Folders that volumes are mounted on belong to the user, so that a new volume does.
RUN useradd --uid 50000 --user-group --no-create-home --home-dir /opt/airflow --shell /usr/sbin/nologin conduit \
 && for folder in /opt/airflow/logs /opt/airflow/secrets /opt/conduit/include /opt/conduit/dags /opt/conduit/out \
      /opt/conduit/.conduit /var/lib/conduit/spool /var/lib/conduit/dead-letters /var/lib/conduit-receiver \
      /var/lib/spark/recovery /var/lib/spark/work; do mkdir -p "$folder"; done \
 && chown -R conduit:conduit /opt/airflow /opt/conduit /var/lib/conduit /var/lib/conduit-receiver /var/lib/spark

# The archive from which Spark drivers start: built here, once, instead of at the first run. With these files alone, so
# that another change of the project does not build it anew.
COPY conduit_tasks/__init__.py conduit_tasks/waits.py ./conduit_tasks/
COPY conduit_tasks/spark/__init__.py conduit_tasks/spark/cds.py ./conduit_tasks/spark/
USER conduit
RUN PYTHONPATH=/opt/build python -c 'from pathlib import Path; from conduit_tasks.spark import cds; cds.build(Path("/opt/conduit"), 500)'
USER root

COPY pyproject.toml README.md LICENSE ./
COPY conduit_tasks ./conduit_tasks
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . && rm -rf /opt/build/*
COPY compose/init.sh compose/healthy.py /opt/conduit/bin/

USER conduit
WORKDIR /opt/conduit
