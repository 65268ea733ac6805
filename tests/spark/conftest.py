"""A standalone Spark cluster of the tests' own."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import conduit_tasks
from conduit_tasks.spark import cds
from conduit_tasks.stack.ports import free_port
from tests.faults.parts import until
from tests.jvm import quick_options
from tests.s3 import bucket, s3_server  # noqa: F401

ROOT = Path(conduit_tasks.__file__).parents[1]


@dataclass
class Cluster:
    master: str
    workers: list[subprocess.Popen[bytes]]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def standing(folder: Path, environment: Mapping[str, str], spark: Path, cores: int = 1) -> Iterator[Cluster]:
    """Starts a master and two workers, with a core each unless `cores` says how many: 1 GiB a core. `folder`: for logs
    and work; `spark`: home of the Spark; `environment`: names the Python of executors."""
    port, processes = free_port(), []
    options, ours = quick_options()
    environment = {
        **environment,
        **ours,
        "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def start(name: str, *arguments: str) -> None:
        with (folder / f"{name}.log").open("wb") as log:
            command = [str(spark / "bin" / "spark-class"), *arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    master = f"spark://127.0.0.1:{port}"
    log, size = folder / "master.log", ("-c", str(cores), "-m", f"{cores}g")
    try:
        start(
            "master", "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"
        )
        until(lambda: _listens(port), "the master to listen")
        for number in (1, 2):
            work = ("-d", str(folder / f"worker-{number}-work"), "--webui-port", "0")
            start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, *work, master)
        until(lambda: log.read_text().count("Registering worker") == 2, "both workers to register")
        yield Cluster(master, processes[1:])
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(240)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster, as the compose stack has it, whose executors have what this process has."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    with standing(tmp_path, environment, cds.spark_home()) as found:
        yield found
