"""Environment of Airflow's components: settings for one machine, quick starts of tasks, and secrets."""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conduit_tasks.spark.remote import TOKEN, Address
from conduit_tasks.stack.layout import Layout, write_private

USER = "admin"
POOL = "conduit_spark"
CONN, ARGS = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "AIRFLOW__DATABASE__SQL_ALCHEMY_CONNECT_ARGS"
SPARK_CONNECTION = {"conn_type": "spark", "host": "local[*]"}


def load_secrets(layout: Layout) -> dict[str, str]:
    """Returns keys and the password of `admin`, made up once; writes the password also to Airflow's own file."""
    if layout.secrets_file.exists():
        known: dict[str, str] = json.loads(layout.secrets_file.read_text())
    else:
        known = {name: secrets.token_urlsafe(64) for name in ("jwt", "api")}
        known["fernet"] = base64.urlsafe_b64encode(os.urandom(32)).decode()
        known["password"] = secrets.token_urlsafe(12)
        write_private(layout.secrets_file, known)
    if "connect" not in known:  # made by a version that had no Connect server
        known["connect"] = secrets.token_urlsafe(32)
        write_private(layout.secrets_file, known)
    if not layout.passwords_file.exists():
        write_private(layout.passwords_file, {USER: known["password"]})
    return known


BUNDLE = {"name": "dags-folder", "classpath": "conduit_tasks.airflow.bundle.PipelineBundle", "kwargs": {}}
"""Airflow's bundle of the folder of DAGs, by the name that it has by default."""


def component_environment(layout: Layout, api_url: str, redis_url: str, connect_url: str = "") -> dict[str, str]:
    """Returns this process's environment with ours added; a user's `AIRFLOW__*` wins unless we rely on the setting.

    `connect_url`: the stack's Spark Connect server, if it has one; its token is passed in the environment only.
    """
    own, bin_dir = load_secrets(layout), str(Path(sys.executable).parent)
    where = urlsplit(api_url)
    path = os.environ.get("PATH", os.defpath)
    fixed = {
        "PATH": path if bin_dir in path.split(os.pathsep) else f"{bin_dir}{os.pathsep}{path}",
        "CONDUIT_HOME": str(layout.home),
        "CONDUIT_REDIS_URL": redis_url,
        "AIRFLOW_HOME": str(layout.airflow),
        "AIRFLOW__CORE__DAGS_FOLDER": str(layout.home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(layout.home / "plugins"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{api_url}/execution/",
        "AIRFLOW__CORE__FERNET_KEY": own["fernet"],
        "AIRFLOW__API__SECRET_KEY": own["api"],
        "AIRFLOW__API_AUTH__JWT_SECRET": own["jwt"],
        "AIRFLOW__API__HOST": str(where.hostname),
        "AIRFLOW__API__PORT": str(where.port),
        "AIRFLOW__API__BASE_URL": api_url,
    }
    if connect_url:
        fixed[TOKEN] = own["connect"]
    return {**_defaults(layout, connect_url), **_database(), **os.environ, **fixed}


def _database() -> dict[str, str]:
    """Returns the settings of connections to SQLite; {} if the database is a server of the user's own."""
    if not os.environ.get(CONN, "sqlite").startswith("sqlite"):
        return {}
    arguments = dict.fromkeys((ARGS, f"{ARGS}_ASYNC"), "conduit_tasks.stack.sqlite.CONNECT_ARGS")
    # The API's event loop takes connections, too, and must not wait for one that a request gives back by its help.
    return {**arguments, "AIRFLOW__DATABASE__SQL_ALCHEMY_MAX_OVERFLOW": "-1"}


def spark_connection(connect_url: str) -> dict[str, Any]:
    """Returns Airflow's Spark connection: the Connect server, and a submit by the task if that does not answer."""
    if not connect_url:
        return SPARK_CONNECTION
    address = Address.parse(connect_url)
    extra = {"master": SPARK_CONNECTION["host"]}
    return {"conn_type": "spark_connect", "host": address.host, "port": address.port, "extra": extra}


QUIET = (
    # At each look the files that it has found: 20 MB a day.
    "airflow.dag_processing.manager",
    # Two lines in the log of each task.
    "airflow.dag_processing.bundles.manager",
    "airflow.dag_processing.dagbag",
    # What becomes of runs and tasks, which Airflow's pages show: some 40 KB for each run of a pipeline.
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
    "airflow.models.dag",
    "airflow.models.dagrun",
    "airflow.serialization.definitions.dag",
    "http.access",
    "supervisor",
)
"""Loggers of Airflow's components of which only warnings are written."""


def _defaults(layout: Layout, connect_url: str) -> dict[str, str]:
    return {
        "CONDUIT_SPARK_POOL": POOL,
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark_connection(connect_url)),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "conduit_tasks.airflow.executor.LocalExecutor",
        # Idle workers cost memory, and Spark needs the cores.
        "AIRFLOW__CORE__PARALLELISM": "12",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(layout.passwords_file),
        "AIRFLOW__API__WORKERS": "1",
        # On a busy machine the API may take longer than five seconds; the task would fail, and be tried again later.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        # 0.03 to 0.3 s from the end of a task to the next one's start, instead of 0.6 to 1.05 s.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.01",
        # A killed scheduler's tasks are taken up again after seconds, not after five minutes.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "15",
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # Our DAG files are parsed when a pipeline file has changed; others, which may read them too, every half minute.
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([BUNDLE]),
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
        "AIRFLOW__LOGGING__NAMESPACE_LEVELS": " ".join(f"{name}=WARNING" for name in QUIET),
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
