"""The real embedded stack, once for all tests that want it: Redis, Airflow's four components, Spark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.stack import processes
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State
from conduit_tasks.stack.ports import free_port
from tests import forked, waiting
from tests.conftest import IDLE, SHARED
from tests.forked import Program
from tests.jvm import shallow
from tests.waiting import PATIENCE

CONDUIT = str(Path(sys.executable).parent / "conduit")
COMMAND = (*forked.MODULES, "conduit_tasks.cli.run", "conduit_tasks.cli.status", "conduit_tasks.stack.api")
"""Modules of the commands that tests of the stack give."""
until = partial(waiting.until, pause=0.1, longest=1.0)
"""Most conditions are questions to Airflow, which it answers with the cores that it needs for what is waited for."""


@dataclass
class Stack:
    """A stack of the tests' own, in a home of its own."""

    home: Path
    environment: dict[str, str]
    clients: dict[str, Api] = field(default_factory=dict)
    """By address: to make one and to log in costs more than most questions."""
    making: threading.Lock = field(default_factory=threading.Lock)
    """Held while a client is looked for: of two that threads made at once, one would never be closed."""

    def conduit(self, *arguments: str, code: int | None = 0) -> str:
        """Runs the command; returns all it said. Forked from a process that has loaded it, unless it starts or stops
        what the stack consists of."""
        with tempfile.TemporaryDirectory(prefix="conduit-said-") as folder:
            log = Path(folder) / "log"
            if arguments[0] == "stack":
                with log.open("wb") as out:
                    command = [CONDUIT, *arguments]
                    got = subprocess.call(command, env=self.environment, cwd=self.home, stdout=out, stderr=out)
            else:
                got = Program([forked.CONDUIT, *arguments], self.environment, self.home, log, COMMAND).wait()
            said = log.read_text()
        assert code is None or got == code, said
        return said

    def end(self) -> None:
        """Stops all of it. Not by `down`, which waits for the pipelines: nobody needs what is in flight."""
        for process in reversed(self.state.processes.values()):
            processes.stop(process, timeout=0)

    @property
    def state(self) -> State:
        return State.load(Layout(self.home))

    def pipelines(self) -> list[Path]:
        """The pipeline files."""
        return list((self.home / "include" / "pipelines").glob("*.yaml"))

    @contextmanager
    def api(self) -> Iterator[Api]:
        url = self.state.api_url
        with self.making:
            if url not in self.clients:
                self.clients[url] = Api(url, password=load_secrets(Layout(self.home))["password"])
            client = self.clients[url]
        yield client

    def pipeline(self, id: str, destination: str, more: str = "") -> None:
        """Adds a pipeline from `in/<id>/*.jsonl` to one destination (YAML, no id, no type), with `more`, a key of the
        pipeline; waits for its DAG."""
        (self.home / "in" / id).mkdir(parents=True)
        # Nothing runs but what a test starts.
        text = (
            f'version: "2.2"\npipelines:\n  - id: {id}\n    schedule: none\n    {more}\n    connectors:\n'
            f'      - {{id: lines, type: source, plugin: file, settings: {{path: "in/{id}/*.jsonl"}}}}\n'
            f"      - {{id: out, type: destination, {destination}}}\n"
        )
        side = self.home / f"{id}.side"
        side.write_text(text)
        side.rename(self.home / "include" / "pipelines" / f"{id}.yaml")
        with self.api() as api:
            until(lambda: api.dag(id))

    @contextmanager
    def lent(self, id: str) -> Iterator[None]:
        """Nothing of this pipeline goes on after the block, however often it is due: the others share the stack."""
        try:
            yield
        finally:
            (self.home / "include" / "pipelines" / f"{id}.yaml").unlink(missing_ok=True)
            with self.api() as api:
                if api.dag(id):
                    api.request("PATCH", f"/dags/{id}", json={"is_paused": True})

    def write(self, id: str, name: str, first: int, last: int) -> None:
        """Adds a file of records {"n": first} … {"n": last} to a pipeline's source."""
        side = self.home / "in" / id / f"{name}.side"
        side.write_text("".join(f'{{"n": {n}}}\n' for n in range(first, last + 1)))
        side.rename(self.home / "in" / id / f"{name}.jsonl")

    def run(self, id: str, *options: str, code: int = 0) -> str:
        return self.conduit("run", id, "--timeout", str(PATIENCE), *options, code=code)

    def last_run(self, id: str) -> str:
        with self.api() as api:
            found = api.request("GET", f"/dags/{id}/dagRuns", params={"order_by": "-run_after", "limit": 1})
        return str(found["dag_runs"][0]["dag_run_id"])

    def states(self, id: str) -> dict[str, str]:
        """Task → state, of the last run."""
        with self.api() as api:
            return {task["task_id"]: task["state"] for task in api.tasks(id, self.last_run(id))}


@pytest.fixture
def stack(only_stack: Stack) -> Iterator[Stack]:
    """The one stack, running: a test that stopped it leaves it to the next one to start it. The pipelines that a test
    adds are gone after it: Airflow would read them with each look at the folder, and every `down` would stop them."""
    if not all(processes.find(p) for p in only_stack.state.processes.values()) or not only_stack.state.processes:
        only_stack.conduit("stack", "up", "--timeout", str(PATIENCE))
    before = set(only_stack.pipelines())
    yield only_stack
    for file in set(only_stack.pipelines()) - before:
        file.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def only_stack() -> Iterator[Stack]:
    home = Path(tempfile.mkdtemp(prefix="conduit-stack-"))
    (home / "include" / "pipelines").mkdir(parents=True)
    shallow(home)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CONDUIT_", "AIRFLOW"))}
    environment |= {**SHARED, "CONDUIT_HOME": str(home), "CONDUIT_LEASE_TTL": "5"}
    # Most tests move a few records, beside the driver; those that are about Spark move more than this.
    environment["CONDUIT_SMALL_RECORDS"] = "300"
    # A killed worker's task is tried again after half a minute.
    environment["AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT"] = "30"
    # Of its own: another stack, which starts at the same moment, would find the same usual ones free.
    for server in ("API", "SPARK_CONNECT", "GATEWAY"):
        environment[f"CONDUIT_{server}_PORT"] = str(free_port())
    own = Stack(home, environment)
    IDLE.append(own.end)
    try:
        own.conduit("stack", "up", "--timeout", str(PATIENCE))
        yield own
    finally:
        for client in own.clients.values():
            client.__exit__(None, None, None)
        own.end()
        shutil.rmtree(home, ignore_errors=True)


@dataclass
class Receiver:
    """Counts what it takes by record, but for what it refuses (400); `pause` seconds before each answer; closed
    `gate` = no answer at all, which closes by itself with the record that makes `stop_at` of them."""

    got: list[int] = field(default_factory=list)
    refuse: set[int] = field(default_factory=set)
    pause: float = 0.0
    stop_at: int = 0
    gate: threading.Event = field(default_factory=threading.Event)
    url: str = ""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    about = Receiver()
    about.gate.set()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            n = find_n(body)
            refused = n in about.refuse
            if not refused:
                about.got.append(n)
                if len(about.got) == about.stop_at:
                    about.gate.clear()
            about.gate.wait(PATIENCE)
            time.sleep(about.pause)
            self.send_response(400 if refused else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    about.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield about
    about.gate.set()
    server.shutdown()
    thread.join()
    server.server_close()


def find_n(body: Any) -> int:
    """The `n` of a record, wherever the body has its payload."""
    if isinstance(body, str):
        body = json.loads(body)
    if "n" in body:
        return int(body["n"])
    return find_n(body.get("payload", {}).get("after") or body["data"])


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path)
    found.prepare()
    return found
