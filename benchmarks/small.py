"""Drivers of small work: forked from a process that has imported what they need, so that none takes the second of
imports that a new interpreter does. No figure of theirs says anything."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORK = multiprocessing.get_context("forkserver")
MODULES = (
    "benchmarks.apps.drive",
    "conduit_tasks.connectors.file.connector",
    "conduit_tasks.connectors.file.lines",
    "conduit_tasks.connectors.file.read",
    "conduit_tasks.connectors.http.connector",
    "conduit_tasks.delivery.record_wise",
    "conduit_tasks.micro_batch.row_pass",
    "conduit_tasks.micro_batch.shard_task",
    "conduit_tasks.processors.registry",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
)
"""Imported once. None opens a connection or starts a thread."""


class Fork:
    """A Python program that runs with arguments, an environment and a folder of its own; its output goes to files."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, out: Path, log: Path
    ) -> None:
        _FORK.set_forkserver_preload([*MODULES])
        self._process: ForkServerProcess = _FORK.Process(
            target=_run, args=([*command], dict(environment), folder, out, log)
        )
        self._process.start()

    def wait(self) -> int:
        """Waits for its end, and returns its exit code."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _run(command: list[str], environment: dict[str, str], folder: Path, out: Path, log: Path) -> None:
    for path, number in ((out, 1), (log, 2)):
        with path.open("ab") as file:
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
    sys.stdout.flush()
