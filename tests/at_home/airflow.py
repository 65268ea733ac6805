"""An Airflow as others run it: CeleryExecutor with two workers, PostgreSQL, a Redis, DAGs from a git repository, and an
environment of its own into which our wheel was installed beside the providers."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from cryptography.fernet import Fernet

from benchmarks.postgres_server import PostgresServer
from conduit_tasks.stack import processes
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.layout import Process
from conduit_tasks.stack.ports import free_port
from tests.conftest import SHARED, RedisServer
from tests.stack.conftest import until
from tests.stack.test_stack import kill

COMPONENTS = {
    "api": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
}
WORKERS = ("one", "two")
OWN_HOSTS = bool(os.environ.get("CONDUIT_TRIED_HOSTS"))
"""Whether a worker has a host name of its own, in place of one that it is told (`--celery-hostname`): with the provider
3.17.1 and kombu 5.6.2 a worker asks Redis whether that name is taken, then forks, and its children wait for the answer
of Redis for ever (docs/your-airflow.md)."""
AS_HOST = 'hostname "$0" && exec "$@"'


@dataclass
class Airflow:
    """`programs`: the environment's folder of programs; `folder`: everything else; `master`: of the Spark cluster;
    `spark`: its home."""

    programs: Path
    folder: Path
    master: str
    spark: Path
    postgres: PostgresServer
    redis: RedisServer
    environment: dict[str, str] = field(default_factory=dict)
    running: dict[str, Process] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)

    @property
    def home(self) -> Path:
        """Our project's folder."""
        return self.folder / "home"

    def prepare(self) -> None:
        """Starts the servers, writes the project and the repository of DAGs, and has Airflow make its tables."""
        port = free_port()
        self.redis.start("--port", str(port), "--bind", "127.0.0.1")
        self.postgres.create().start()
        self.environment = self._environment(f"redis://127.0.0.1:{port}")
        (self.folder / "passwords.json").write_text('{"admin": "admin"}')
        self.home.mkdir()
        self.conduit("init", str(self.home))
        for file in (self.home / "include" / "pipelines").glob("*.yaml"):
            file.unlink()
        self._commit()
        self._airflow("db", "migrate")

    def start(self, *names: str) -> None:
        """Starts components and workers."""
        for name in names:
            if name in WORKERS:
                self.worker(name)
            else:
                self._start(name, COMPONENTS[name])

    def end(self, name: str) -> None:
        """Ends a component of which nothing more is wanted."""
        self.killed.add(name)
        processes.stop(self.running[name], timeout=0)

    def worker(self, name: str) -> None:
        """Starts a worker."""
        arguments = ["celery", "worker", "--concurrency", "4", "--without-mingle", "--skip-serve-logs"]
        arguments += ["--pid", str(self.folder / f"{name}.pid")]
        if OWN_HOSTS:
            self._start(name, arguments, ["unshare", "--map-root-user", "--uts", "sh", "-c", AS_HOST, name])
        else:
            self._start(name, [*arguments, "--celery-hostname", f"{name}@here"])

    def stop(self) -> None:
        """Ends everything at once, as much of it as was started."""
        for process in reversed(self.running.values()):
            processes.stop(process, timeout=0)
        if self.redis.process is not None:
            self.redis.kill()
        self.postgres.remove()

    def until(self, condition: Callable[[], Any]) -> None:
        """Waits. Raises AssertionError with the end of its log as soon as a part has ended that nobody has killed."""

        def came() -> bool:
            for name, process in self.running.items():
                said = (self.folder / f"{name}.log").read_text()[-3_000:]
                assert name in self.killed or processes.find(process), f"{name} has ended:\n{said}"
            return bool(condition())

        until(came)

    def kill(self, worker: str) -> None:
        """Kills a worker and all that it has started."""
        self.killed.add(worker)
        kill(self.family(worker))

    def conduit(self, *arguments: str, code: int | None = 0) -> str:
        """Runs our command in a worker's environment; returns all it said."""
        return self._run([str(self.programs / "conduit"), *arguments], code)

    def api(self) -> Api:
        """Makes a client of Airflow's API, to be closed."""
        return Api(self.environment["CONDUIT_AIRFLOW_URL"], user="admin", password="admin")

    def family(self, worker: str) -> list[psutil.Process]:
        """Returns the worker's process and all that it has started."""
        found = psutil.Process(self.running[worker].pid)
        return [found, *found.children(recursive=True)]

    def works_on(self, worker: str, node: str) -> bool:
        """Returns whether a process that the worker has started is an application of this node."""
        for process in self.family(worker):
            with suppress(psutil.Error):  # it has ended meanwhile
                if node in process.cmdline():
                    return True
        return False

    def executor(self, application: str) -> list[psutil.Process]:
        """Returns the processes that execute an application of the Spark cluster: JVMs, and their Pythons."""
        [number] = re.findall(rf"Registered app {application} with ID (\S+)", (self.folder / "master.log").read_text())
        found = [each for each in psutil.process_iter(["cmdline"]) if number in (each.info["cmdline"] or ())]
        assert found, f"nothing executes {application}"
        return [*found, *(child for each in found for child in each.children(recursive=True))]

    def _airflow(self, *arguments: str) -> str:
        return self._run([str(self.programs / "airflow"), *arguments], 0)

    def _run(self, command: Sequence[str], code: int | None) -> str:
        done = subprocess.run(
            command, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=300
        )
        said = done.stdout + done.stderr
        assert code is None or done.returncode == code, said
        return said

    def _start(self, name: str, arguments: Sequence[str], before: Sequence[str] = ()) -> None:
        self.running[name] = processes.start(
            [*before, str(self.programs / "airflow"), *arguments],
            env=self.environment,
            cwd=self.folder,
            log=self.folder / f"{name}.log",
        )

    def _commit(self) -> None:
        """Makes a repository whose folder `dags` has our two DAG files."""
        repository = self.folder / "repository"
        repository.mkdir()
        (self.home / "dags").rename(repository / "dags")
        who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
        for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-q", "-m", "Add the DAGs"]):
            subprocess.run(["git", *command], cwd=repository, check=True)

    def _environment(self, redis: str) -> dict[str, str]:
        url = f"http://127.0.0.1:{free_port()}"
        kwargs = {"repo_url": str(self.folder / "repository"), "tracking_ref": "main", "subdir": "dags"}
        bundle = {"name": "ours", "classpath": "airflow.providers.git.bundles.git.GitDagBundle", "kwargs": kwargs}
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("CONDUIT_", "AIRFLOW"))}
        # Nobody has compiled what was installed there: without this each process would compile all that it imports.
        clean.pop("PYTHONDONTWRITEBYTECODE", None)
        return {
            **clean,
            **SHARED,
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "CONDUIT_HOME": str(self.home),
            "CONDUIT_REDIS_URL": f"{redis}/0",
            "CONDUIT_SPOOL": str(self.folder / "spool"),
            "CONDUIT_DEAD_LETTERS": str(self.folder / "dead-letters"),
            "CONDUIT_LEASE_TTL": "5",
            "CONDUIT_AIRFLOW_URL": url,
            "CONDUIT_AIRFLOW_USER": "admin",
            "CONDUIT_AIRFLOW_PASSWORD": "admin",
            "AIRFLOW_HOME": str(self.folder / "airflow"),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": self.master}),
            "SPARK_HOME": str(self.spark),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": url.rpartition(":")[2],
            "AIRFLOW__API__SECRET_KEY": secrets.token_hex(16),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(32),
            "AIRFLOW__CELERY__BROKER_URL": f"{redis}/1",
            "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{self.postgres.url}",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CORE__FERNET_KEY": Fernet.generate_key().decode(),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.folder / "bundles"),
            "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": self.postgres.url,
            # Nothing of what is waited for is the work of seconds
            "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "3",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
        }
