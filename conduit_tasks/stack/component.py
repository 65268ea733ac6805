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
import threading
from collections.abc import Callable, Mapping, Sequence
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
"""Modules that components load. None opens a connection or starts a thread."""


class Loaded:
    """A process that has loaded Airflow, of which its commands are forked. What it says itself is in `log`."""

    def __init__(self, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        self._log = log
        command = [sys.executable, "-m", __name__]
        with log.open("wb") as out:
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

    def start(
        self, arguments: Sequence[str], log: Path, timeout: float, known: Callable[[Process], None] = lambda _: None
    ) -> Process:
        """Starts `airflow` with arguments, in a session of its own: a terminal's Ctrl-C does not reach it. Output goes
        to `log`. It does nothing before `known` has returned, and ends if this process dies before. Raises StackError
        if Airflow cannot be loaded, or is not within `timeout` seconds, and if `log` cannot be written."""
        what = f"airflow {' '.join(arguments)} did not start within {timeout:g} s; see {self._log}"
        pid = self._ask({"fork": list(arguments), "log": str(log)}, timeout, what)
        process = Process(pid, psutil.Process(pid).create_time())
        known(process)
        self._ask({"go": pid}, timeout, what)
        return process

    def run(self, arguments: Sequence[str], log: Path, timeout: float) -> int:
        """Runs `airflow` and returns its exit code, as `subprocess` does. Raises StackError as `start`, or if it has
        not ended within `timeout` seconds: then it is killed, as it is by an interrupt meanwhile."""
        begun: list[Process] = []
        try:
            process = self.start(arguments, log, timeout, begun.append)
            what = f"airflow {' '.join(arguments)} did not end within {timeout:g} s; see {log}"
            return self._ask({"wait": process.pid}, timeout, what)
        except BaseException:
            for process in begun:
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
            said = json.loads(answered.readline())
        except (OSError, ValueError):
            words = f"its last words in {self._log}:\n{tail(self._log, 12)}"
            raise StackError(f"the process that loads Airflow has ended; {words}") from None
        if isinstance(said, str):
            raise StackError(f"airflow {' '.join(question['fork'])} cannot be started: {said}")
        return int(said)


def main() -> None:
    """Runs `airflow` with this process's arguments; without any, loads it, and does what is asked, a JSON line each,
    until nobody asks any more."""
    gc.set_threshold(IMPORTED, *gc.get_threshold()[1:])
    if sys.argv[1:]:
        _run(sys.argv[1:])
        return
    answers = os.fdopen(os.dup(1), "w")
    # What Airflow prints as it is loaded is no answer.
    os.dup2(2, 1)
    for module in MODULES:
        import_module(module)
    gc.freeze()
    whole = _threads() == 1 and _open_files() == {0, 1, 2, answers.fileno()}
    gates = dict[int, int]()
    for line in sys.stdin:
        question = json.loads(line)
        said: int | str = 0
        if "fork" in question:
            try:
                forked = _fork(Path(question["log"]))
            except OSError as error:
                said = str(error)
            else:
                if forked is None:
                    answers.close()
                    _begin(question["fork"], whole)
                    return
                said, gates[forked[0]] = forked[0], forked[1]
        elif "go" in question:
            gate = gates.pop(question["go"])
            os.write(gate, b"go")
            os.close(gate)
        else:
            said = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        print(json.dumps(said), file=answers, flush=True)


def _fork(log: Path) -> tuple[int, int] | None:
    """Forks a process. Returns its id, once it has a session of its own, and the file to which is written when it may
    go on; in that process None, once it may. It ends if that file is closed before. Raises OSError."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    (waits, gate), (seen, ready) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        for file in (out, waits, ready):
            os.close(file)
        os.read(seen, 1)
        os.close(seen)
        return pid, gate
    os.setsid()
    for file in (gate, seen, ready):
        os.close(file)
    if not os.read(waits, 1):
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for stream, file in enumerate((nothing, out, out)):
        os.dup2(file, stream)
    for file in (waits, nothing, out):
        os.close(file)
    return None


def _begin(arguments: Sequence[str], whole: bool) -> None:
    """Runs `airflow` in this process if a fork has all of what it was forked of (`whole`), else in a new Python:
    threads that somebody's settings of Airflow have started would be missing, and what they have opened be shared."""
    if not whole:
        os.execv(sys.executable, [sys.executable, "-m", "conduit_tasks.stack.component", *arguments])  # noqa: S606
    _run(arguments)


def _run(arguments: Sequence[str]) -> None:
    """Runs `airflow` as `python -m airflow` does."""
    setproctitle(f"airflow {' '.join(arguments)}")
    sys.argv = ["airflow", *arguments]
    run_module("airflow", run_name="__main__", alter_sys=True)


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _open_files() -> set[int]:
    found = set[int]()
    for number in map(int, os.listdir("/dev/fd")):
        # The listing has a file open, too, and has closed it by now.
        with suppress(OSError):
            os.fstat(number)
            found.add(number)
    return found


if __name__ == "__main__":
    main()
