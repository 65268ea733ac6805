"""A standalone Spark cluster: a real master and two real workers, on this machine."""

from __future__ import annotations

import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from conduit_tasks.stack.ports import free_port

PATIENCE = 240.0
"""Seconds for its processes to begin, and to end."""


@dataclass
class Cluster:
    """`folder`: for logs and work. `begin`: starts the worker of a number."""

    master: str
    workers: list[subprocess.Popen[bytes]]
    folder: Path
    begin: Callable[[int], subprocess.Popen[bytes]]

    def restore(self) -> None:
        """Starts another worker for each that has ended."""
        for at, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.workers[at] = self.begin(at + 1)

    def applications(self) -> int:
        """How many the master has registered."""
        return (self.folder / "master.log").read_text().count("Registering app")


@contextmanager
def standing(
    folder: Path,
    environment: Mapping[str, str],
    spark: Path,
    cores: int = 1,
    *,
    memory: str = "",
    options: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Starts a master and two workers, with a core each unless `cores` says how many: 1 GiB a core, or `memory`.
    `folder`: for logs and work; `spark`: home of the Spark; `environment`: names the Python of executors; `options`: of
    the JVMs of master and workers."""
    port, processes = free_port(), list[subprocess.Popen[bytes]]()
    environment = {
        **environment,
        "SPARK_DAEMON_JAVA_OPTS": shlex.join(options),
        "SPARK_HOME": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (folder / f"{name}.log").open("ab") as log:
            command = [str(spark / "bin" / "spark-class"), *arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        return processes[-1]

    def until(what: str, is_so: Callable[[], bool], started: Sequence[subprocess.Popen[bytes]]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            if time.monotonic() > deadline or any(process.poll() is not None for process in started):
                raise SystemExit(f"{what} within {PATIENCE:g} s, or ended; its log is in {folder}")
            time.sleep(0.05)

    master = f"spark://127.0.0.1:{port}"
    log, size = folder / "master.log", ("-c", str(cores), "-m", memory or f"{cores}g")

    def registered() -> int:
        return log.read_text().count("Registering worker")

    def begin(number: int) -> subprocess.Popen[bytes]:
        work = ("-d", str(folder / f"worker-{number}-work"), "--webui-port", "0")
        return start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, *work, master)

    def another(number: int) -> subprocess.Popen[bytes]:
        before, worker = registered(), begin(number)
        until("the worker did not register", lambda: registered() > before, [worker])
        return worker

    try:
        start(
            "master", "org.apache.spark.deploy.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"
        )
        until("the master did not listen", lambda: _listens(port), processes)
        workers = [begin(number) for number in (1, 2)]
        until("the workers did not register", lambda: registered() == 2, processes)
        yield Cluster(master, workers, folder, another)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(PATIENCE)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
