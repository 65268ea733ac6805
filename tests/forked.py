"""Processes of their own for pieces of work, in place of Spark's workers, without the second of imports that each new
interpreter takes: they are forked from one that has imported them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

MODULES = (
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.connectors.http.connector",
    "conduit_tasks.micro_batch.shard_task",
    "pandas",
    "pyarrow.pandas_compat",
    "pyarrow.parquet",
    "tests.faults.holding",
)
"""Imported once. None opens a connection or starts a thread."""
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(MODULES))


class Forked:
    """A process that calls a function with a piece of work; asked like one of `subprocess`. `log`: file that its output
    is appended to."""

    def __init__(self, function: Callable[[Any], Any], piece: Any, log: Path | None = None) -> None:
        self._here, there = _SERVER.Pipe(duplex=False)
        work = pickle.dumps((function, piece))
        # The server has the environment of whoever needed it first.
        self._process = _SERVER.Process(target=_work, args=(there, dict(os.environ), os.getcwd(), log, work))
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


def _work(to: Connection, environment: Mapping[str, str], folder: str, log: Path | None, work: bytes) -> None:
    if log is not None:
        with log.open("ab") as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    function, piece = pickle.loads(work)
    to.send_bytes(pickle.dumps(function(piece)))
