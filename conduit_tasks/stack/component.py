"""Airflow's command, as the stack starts its components: forked from one process that has loaded Airflow.

To load it takes 2 s of CPU, which each component, and the making of the database before them, would spend by itself;
what it has loaded they share in memory.
"""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from runpy import run_module
from typing import Any

import psutil
from setproctitle import setproctitle

from conduit_tasks.stack.layout import Process
from conduit_tasks.stack.processes import StackError, stop, tail

IMPORTED = 10_000
"""New objects between two looks for garbage. Nearly all that Airflow makes as it is imported stays: to look at it each
700 objects takes a tenth of the CPU of a start."""
ENDS = 10.0
"""Seconds that the process may take to be gone once it was killed."""
MODULES = (
    "airflow.api_fastapi.app",
    "airflow.api_fastapi.execution_api.app",
    "airflow.cli.cli_parser",
    "airflow.dag_processing.manager",
    "airflow.jobs.scheduler_job_runner",
    "airflow.jobs.triggerer_job_runner",
)
"""What components load. None opens a connection or starts a thread."""


class Loaded:
    """A process that has loaded Airflow, of which its commands are forked. What it says itself goes to `log`."""

    def __init__(self, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", __name__]
        with log.open("ab") as out:
            self._process = subprocess.Popen(  # noqa: S603  this module
                command, env=dict(env), cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out, text=True
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __enter__(self) -> Loaded:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the process, not what was forked of it."""
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=ENDS)

    def start(self, arguments: Sequence[str], log: Path, timeout: float) -> Process:
        """Starts `airflow` with arguments, in a session of its own: a terminal's Ctrl-C does not reach it. Output goes
        to `log`. Raises StackError if Airflow cannot be loaded, or is not within `timeout` seconds."""
        what = f"airflow {' '.join(arguments)} did not start within {timeout:g} s; see {self._log}"
        pid = self._ask({"start": list(arguments), "log": str(log)}, timeout, what)
        return Process(pid, psutil.Process(pid).create_time())

    def run(self, arguments: Sequence[str], log: Path, timeout: float) -> int:
        """Runs `airflow` and returns its exit code, as `subprocess` does. Raises StackError as `start`, or if it has
        not ended within `timeout` seconds: then it is killed, as it is by an interrupt meanwhile."""
        process = self.start(arguments, log, timeout)
        what = f"airflow {' '.join(arguments)} did not end within {timeout:g} s; see {log}"
        try:
            return self._ask({"wait": process.pid}, timeout, what)
        except BaseException:
            stop(process, timeout=0)
            raise

    def _ask(self, question: Mapping[str, Any], timeout: float, otherwise: str) -> int:
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        try:
            print(json.dumps(question), file=asked, flush=True)
            if not select.select([answered], [], [], timeout)[0]:
                raise StackError(otherwise)
            return int(answered.readline())
        except (OSError, ValueError):  # it has ended
            said = tail(self._log, 12)
            raise StackError(f"Airflow could not be loaded; see {self._log}:\n{said}") from None


def main() -> None:
    """Loads Airflow, then does what is asked, a JSON line each, until nobody asks any more."""
    gc.set_threshold(IMPORTED, *gc.get_threshold()[1:])
    answers = os.fdopen(os.dup(1), "w")
    # What Airflow prints as it is loaded is no answer.
    os.dup2(2, 1)
    for module in MODULES:
        import_module(module)
    gc.freeze()
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            said = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            said = os.fork()
            if not said:
                answers.close()
                _run(question["start"], question["log"])
                return
        print(said, file=answers, flush=True)


def _run(arguments: Sequence[str], log: str) -> None:
    """Runs `airflow` as `python -m airflow` does."""
    os.setsid()
    nothing, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    for stream, file in enumerate((nothing, out, out)):
        os.dup2(file, stream)
    os.close(nothing)
    os.close(out)
    setproctitle(f"airflow {' '.join(arguments)}")
    sys.argv = ["airflow", *arguments]
    run_module("airflow", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
