"""Processes of their own, without the seconds of imports that each new interpreter takes: they are forked from one that
has imported what they need, as Airflow's LocalExecutor forks its tasks."""

from __future__ import annotations

import gc
import io
import json
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import context, forkserver, popen_forkserver, reduction, spawn, util
from multiprocessing.connection import Connection
from multiprocessing.forkserver import ForkServer
from pathlib import Path
from typing import Any

from conduit_tasks.airflow import forked

ROOT = Path(__file__).parents[1]
CONDUIT = ROOT / "conduit_tasks/cli/__main__.py"
"""The command `conduit` as a program."""
MODULES = (
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.connectors.http.connector",
    "conduit_tasks.connectors.sql.connector",
    "conduit_tasks.micro_batch.shard_task",
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "tests.faults.conftest",
    "tests.faults.holding",
    "tests.forked",
    *forked.MODULES,
    "conduit_tasks.cli.gateway",
    "conduit_tasks.cli.main",
    "conduit_tasks.cli.metrics",
    "conduit_tasks.gateway.serve",
)
"""Imported once. None opens a connection or starts a thread."""
_SERVERS: dict[tuple[str, ...], ForkServer] = {}
"""By the modules that each has imported."""


class _Popen(popen_forkserver.Popen):
    """What multiprocessing does, which knows one server only; and without the program that this process began with,
    which is pytest."""

    def _launch(self, process: _Process) -> None:
        about = spawn.get_preparation_data(process.name)
        for main in ("init_main_from_name", "init_main_from_path"):
            about.pop(main, None)
        work = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(about, work)
            reduction.dump(process, work)
        finally:
            context.set_spawning_popen(None)
        if (server := _SERVERS.get(process.modules)) is None:
            server = _SERVERS[process.modules] = ForkServer()
            server.set_forkserver_preload(list(process.modules))
        self.sentinel, to = server.connect_to_new_process(self._fds)  # type: ignore[attr-defined]
        self.finalizer = util.Finalize(self, util.close_fds, (os.dup(to), self.sentinel))  # type: ignore[attr-defined]
        with os.fdopen(to, "wb") as file:
            file.write(work.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)


class _Process(context.ForkServerProcess):
    modules: tuple[str, ...] = MODULES

    @staticmethod
    def _Popen(process: _Process) -> _Popen:  # type: ignore[override]
        return _Popen(process)


class Forked:
    """A process that calls a function with a piece of work; asked like one of `subprocess`. `log`: file that its output
    is appended to. `modules`: what the process that it is forked from has imported."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        piece: Any,
        log: Path | None = None,
        modules: tuple[str, ...] = MODULES,
    ) -> None:
        self._here, there = multiprocessing.Pipe(duplex=False)
        work = pickle.dumps((function, piece))
        # The server has the environment of whoever needed it first.
        self._process = _Process(target=_work, args=(there, dict(os.environ), os.getcwd(), log, work))
        self._process.modules = modules
        self._process.start()
        there.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, -N of one that signal N has ended; None: it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """Raises TimeoutError."""
        self._process.join(seconds)
        if (code := self._process.exitcode) is None:
            raise TimeoutError(f"process {self.pid} has not ended after {seconds:g} s")
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def answer(self, seconds: float = 240.0) -> Any:
        """What the function returned. Raises EOFError if the process ended without an answer, and TimeoutError."""
        if not self._here.poll(seconds):
            raise TimeoutError(f"process {self.pid} has not answered after {seconds:g} s")
        try:
            return pickle.loads(self._here.recv_bytes())
        finally:
            self._here.close()
            self.wait(seconds)


class Program(Forked):
    """A Python file that runs in a session of its own, with arguments, environment, exit code and output as if a Python
    had been started with it: by the product's own way to fork an application."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        modules: tuple[str, ...] = MODULES,
    ) -> None:
        super().__init__(_run, ([str(each) for each in arguments], dict(environment), folder), log, modules)


def _work(to: Connection, environment: Mapping[str, str], folder: str, log: Path | None, work: bytes) -> None:
    if log is not None:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
    gc.freeze()  # else the first look for garbage goes through all that was imported
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    function, piece = pickle.loads(work)
    to.send_bytes(pickle.dumps(function(piece)))


def _run(program: tuple[list[str], dict[str, str], Path]) -> None:
    arguments, environment, folder = program
    os.setsid()
    os.chdir(folder)
    command, told = os.pipe()
    with os.fdopen(told, "w") as out:
        json.dump([arguments, environment, []], out)
    forked._child(command, 1)
