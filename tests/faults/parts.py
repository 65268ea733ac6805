"""The real parts that faults are tried on: receivers and Spark applications as processes; what to check after."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sqlite3
import ssl
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from conduit_tasks.application import APPLICATION
from conduit_tasks.errors import ConduitError
from conduit_tasks.operate.status import snapshot
from conduit_tasks.stack.ports import free_port
from tests.faults.holding import serve
from tests.forked import Forked, Program
from tests.jvm import quick_options
from tests.micro_batch.harness import run_once
from tests.waiting import until

ROOT = Path(__file__).parents[2]
SMALL = {"CONDUIT_SMALL_RECORDS": "20000", "JAVA_HOME": "/nowhere"}
"""The environment of an application that does small work in its child process, and has no Java for anything else."""
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For httpx, which else reads the authorities of the machine at each request: 40 ms of CPU, while it is waited for."""


def events(folder: Path, count: int, start: int = 0, lane: str = "", **more: Any) -> list[dict[str, Any]]:
    """Appends events {"n": …, "k": n % 7} to a file; `lane` goes before k, `more` are fields of all. Returns them."""
    rows = [{"n": n, "k": f"{lane}{n % 7}", **more} for n in range(start, start + count)]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "a.jsonl").open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


@dataclass
class Receiver:
    """The demo's HTTP receiver as a process, which can be told to leave senders waiting in the middle."""

    folder: Path
    arguments: tuple[str, ...] = ("--unavailable", "0", "--limited", "0", "--order", "k,n")
    port: int = 0
    process: Forked | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        arguments = ["--port", str(self.port), "--db", str(self.folder / "receiver.db"), *self.arguments]
        self.process = Forked(serve, (self.folder / "hold", arguments), self.folder / "receiver.log")
        until(self._answers, f"the receiver; see {self.folder}/receiver.log")

    def _answers(self) -> bool:
        try:
            httpx.get(f"{self.url}/summary", timeout=2, verify=NO_TLS)
        except httpx.HTTPError:
            return False
        return True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def mode(self, mode: str) -> None:
        httpx.put(f"{self.url}/mode", json={"mode": mode}, timeout=60, verify=NO_TLS).raise_for_status()

    def hold(self, count: int) -> None:
        """From its `count`-th event on it takes and answers none, until it is released: whoever sends stays in the
        middle, however fast this machine is, and however long the test stands still."""
        side = self.folder / "side"
        side.write_text(str(count))
        side.rename(self.folder / "hold")

    def release(self) -> None:
        (self.folder / "hold").unlink()

    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = httpx.get(f"{self.url}/summary", timeout=60, verify=NO_TLS).json()
        return found

    def accepted(self) -> int:
        return int(self.summary()["accepted"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@dataclass
class Application:
    """The Spark application of one node, in a session of its own, as Airflow's worker starts it: it is forked. Its work
    is done in Spark, however small it is, unless `environment` says otherwise (SMALL)."""

    folder: Path
    pipeline: str
    node: str
    run: str = "app"
    environment: dict[str, str] = field(default_factory=dict)
    program: Path = APPLICATION
    process: Program = field(init=False)

    def start(self) -> Application:
        options, ours = quick_options()
        submit = f"--driver-java-options {shlex.quote(shlex.join(options))} --conf spark.ui.enabled=false"
        # As the product has it on one machine (`spark.submit`): Python workers need not compile PySpark
        submit += " --conf spark.python.daemon.module=conduit_tasks.spark.plain_daemon"
        environment = {
            **os.environ,
            **ours,
            "PYSPARK_SUBMIT_ARGS": f"{submit} --conf spark.driver.host=127.0.0.1 pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": str(ROOT),
            "CONDUIT_SMALL_RECORDS": "0",
            **self.environment,
        }
        ids = ["--pipeline", self.pipeline, "--node", self.node, "--run", self.run]
        self.process = Program([self.program, *ids], environment, ROOT, self.log)
        return self

    @property
    def log(self) -> Path:
        return self.folder / f"{self.node}.log"

    def kill(self) -> None:
        """SIGKILL to the whole process group; fails where the application had ended before."""
        assert self.process.poll() is None, f"{self.node} ended before it was killed: {self.log.read_text()[-2000:]}"
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self, seconds: float = 300.0) -> int:
        return self.process.wait(seconds)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def events(self) -> list[dict[str, Any]]:
        """The application's structured lines."""
        lines = self.log.read_text(errors="replace").splitlines()
        return [json.loads(line.removeprefix("conduit ")) for line in lines if line.startswith("conduit {")]


def drive(pipeline: str = "p", most: int = 60, seconds: float = 300.0, **more: Any) -> list[dict[str, Any]]:
    """Runs until `plan` finds nothing new, as a schedule would: a run that fails by the machinery (Redis, the spool)
    is followed by the next. Returns what each said; a failed one {"failed": error}."""
    runs: list[dict[str, Any]] = []
    deadline = time.monotonic() + seconds
    while len(runs) < most:
        try:
            runs.append(run_once(pipeline, f"run-{len(runs)}", **more))
        except ConduitError as error:
            runs.append({"failed": error})
        if len(runs[-1]) == 1 and isinstance(runs[-1].get("plan"), str):
            return runs
        assert time.monotonic() < deadline, f"not quiet after {seconds:g} s: {runs[-1]}"
    raise AssertionError(f"not quiet after {most} runs: {runs[-1]}")


def account(pipeline: str = "p") -> dict[str, Any]:
    """The pipeline's snapshot, after checking that all of it adds up: everything read is handled by every destination
    and acked. Destinations are a map by id."""
    found = snapshot(pipeline)
    assert found["unsealed"] is None
    for source in found["sources"]:
        assert source["acked"] == source["planned"], f"{source['id']} is not acked up to what was read"
    for d in found["destinations"]:
        assert d["cursor"] == found["sealed"], f"{d['id']} is behind"
        assert d["matched"] == d["delivered"] + d["filtered"] + d["nacked"] + d["completed"], d
        assert d["dead"] == d["nacked"], d
    found["destinations"] = {d["id"]: d for d in found["destinations"]}
    return found


def table(path: Path, column: str = "n") -> list[Any]:
    """A column of the table `events`, in the order of insertion; [] where there is none yet."""
    if not path.exists():
        return []
    connection = sqlite3.connect(path, timeout=10)
    try:
        return [row[0] for row in connection.execute(f"SELECT {column} FROM events ORDER BY rowid")]
    except sqlite3.OperationalError:
        return []
    finally:
        connection.close()


def dead_letters(pipeline: str = "p", destination: str | None = None) -> list[dict[str, Any]]:
    """The project's own store of dead letters."""
    from conduit_tasks.dead_letters.store import DeadLetterStore
    from conduit_tasks.settings import settings

    store = DeadLetterStore(settings().path(settings().dead_letters), pipeline)
    return store.list(destination)
