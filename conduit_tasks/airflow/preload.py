"""Import of the tasks' modules into the scheduler, before LocalExecutor forks its workers, and into the DAG processor.

A task runs in a process forked from such a worker and inherits its modules; without this each task would import them
again. A DAG file is parsed in a process forked from the DAG processor, every few seconds. Both call their listeners
at their start, before they fork. Workers of Celery and Kubernetes are no children of the scheduler: there each worker,
or each pod, imports for itself.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from airflow.listeners import hookimpl

from conduit_tasks.airflow import forked

MODULES = (
    "airflow.dag_processing.dagbag",
    "airflow.providers.apache.spark.hooks.spark_submit",
    "airflow.providers.standard.operators.empty",
    "airflow.providers.standard.operators.python",
    "airflow.sdk.definitions.asset.metadata",
    "airflow.sdk.definitions.connection",
    "airflow.sdk.execution_time.supervisor",
    "airflow.sdk.execution_time.task_runner",
    "conduit_tasks.airflow.factory",
    "conduit_tasks.airflow.resend",
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.connectors.file.on_disk",
    "conduit_tasks.connectors.file.plan",
    "conduit_tasks.connectors.file.settle",
    "conduit_tasks.micro_batch.acks",
    "conduit_tasks.micro_batch.plan",
    "conduit_tasks.micro_batch.rebuild",
    "conduit_tasks.micro_batch.recovery",
    "conduit_tasks.micro_batch.work_needed",
)
"""Modules that `plan`, a check for work, a submit and `acks` of every pipeline import. None opens a connection, which
processes must not share; Arrow and OpenBLAS, which start threads when they are imported, start them again after a
fork."""

log = logging.getLogger(__name__)


@hookimpl
def on_starting(component: Any) -> None:
    """Preloads modules when Airflow starts a scheduler or DAG processor. The command line says which of its jobs it is;
    `component` does not know yet."""
    if sys.argv[1:2] in (["scheduler"], ["dag-processor"]):
        preload(MODULES)
    if sys.argv[1:2] == ["scheduler"]:
        preload((*forked.MODULES, *(forked.CONNECT if connects() else ())))
        read_certificates()


def read_certificates() -> None:
    """Has Airflow read the certificates that a worker's client of the API knows: it keeps them, and a fork has them,
    too. Logs a warning if they cannot be read; the worker fails by the same error."""
    try:
        from airflow.sdk.api.client import Client

        Client(base_url="http://localhost", token="").close()
    except (ImportError, OSError, ValueError) as error:
        log.warning("the API's certificates are not read before tasks are forked: %s", error)


def connects() -> bool:
    """Returns whether the environment has a connection to a Spark Connect server."""
    return any(
        name.startswith("AIRFLOW_CONN_") and ("spark_connect" in value or "sc://" in value)
        for name, value in os.environ.items()
    )


def preload(names: Sequence[str]) -> None:
    """Imports modules. Logs a warning if one cannot be imported; the task that needs it fails by the same error."""
    for name in names:
        try:
            import_module(name)
        except ImportError as error:
            log.warning("%s is not loaded before tasks are forked: %s", name, error)
