"""One embedded stack for all of these tests: real scheduler, real spark-submit, in a home and on a port of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from conduit_tasks.settings import forget
from conduit_tasks.stack import redis
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.layout import Layout, State
from tests.e2e.pipelines import FLIGHTS, texts
from tests.faults.parts import Receiver, until

SETTINGS = {
    "CONDUIT_LEASE_TTL": "4",
    "CONDUIT_LEASE_GRACE": "0.2",
    # A lost worker is noticed sooner than after a minute.
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "25",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "2",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "2",
}


def conduit(*words: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    """The `conduit` command; what it says is shown where a test fails."""
    command = [str(Path(sys.executable).with_name("conduit")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    sys.stderr.write(done.stderr)
    return done


@dataclass
class Stack:
    """The running stack; `flights` and `events` are the receivers of the demo's pipeline and of the others."""

    layout: Layout
    flights: Receiver
    events: Receiver

    @property
    def home(self) -> Path:
        return self.layout.home

    def api(self) -> Api:
        return Api.of(self.layout)

    def up(self) -> None:
        """Starts what does not run."""
        assert conduit("stack", "up").returncode == 0
        forget()

    def down(self, deadline: float = 60.0) -> bool:
        """Whether everything was drained in time and ended by itself."""
        return conduit("stack", "down", "--deadline", f"{deadline:g}").returncode == 0

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(State.load(self.layout).processes[name].pid)

    @contextmanager
    def only_redis(self) -> Iterator[None]:
        """The Redis of a stack that is down, to look at what it keeps."""
        with self.layout.log("redis").open("ab") as log:
            process = subprocess.Popen(redis.command(self.layout), cwd=self.layout.redis, stdout=log, stderr=log)
        try:
            until(lambda: redis.answers(self.layout), "Redis")
            yield
        finally:
            process.terminate()
            process.wait(20)


@pytest.fixture(scope="session")
def home_of_stack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("stack")
    (home / "include" / "pipelines").mkdir(parents=True)
    return home


@pytest.fixture(scope="session")
def prepared(home_of_stack: Path) -> Iterator[Stack]:
    """Everything but the start: settings, pipeline files, receivers; at the end nothing is left running."""
    home = home_of_stack
    flights = Receiver(home / "flights", arguments=(*FLIGHTS, "--seed", "2013"))
    events = Receiver(home / "events")
    stack = Stack(Layout(home), flights, events)
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("CONDUIT_", "AIRFLOW", "DATABASE_URL"))]:
            patch.delenv(name)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            patch.setenv("CONDUIT_API_PORT", str(probe.getsockname()[1]))
        patch.setenv("CONDUIT_HOME", str(home))
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        flights.start()
        events.start()
        patch.setenv("DELAYS_URL", f"{flights.url}/delays")
        for name, text in texts(events.url).items():
            (home / "include" / "pipelines" / f"{name}.yaml").write_text(text)
        forget()
        try:
            yield stack
        finally:
            stack.down(5.0)
            flights.stop()
            events.stop()
    forget()


@pytest.fixture
def stack(prepared: Stack) -> Stack:
    """The stack, up; what a test before stopped is started again."""
    prepared.up()
    return prepared
