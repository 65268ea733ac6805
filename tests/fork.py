"""A process of its own for what is killed, goes on beside the test, or has an environment of its own: forked from the
one of the test, which has imported all it needs. For tests of anything but the start of an interpreter, which takes
two seconds of CPU with Airflow."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from conduit_tasks.airflow import forked
from conduit_tasks.airflow.forked import Application

_FORK = multiprocessing.get_context("fork")
AIRFLOW = """
import os, sys
from airflow import settings
from airflow.logging_config import configure_logging
from airflow.models import crypto
sys.unraisablehook = sys.__unraisablehook__
# As the configuration has it of the home that was there at its import
os.environ.setdefault("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", f"sqlite:///{os.environ['AIRFLOW_HOME']}/airflow.db")
settings.dispose_orm(do_log=False)
settings.configure_vars()
settings.configure_orm()
configure_logging()
crypto.get_fernet.cache_clear()
"""
"""First lines of a script: this process's Airflow is configured as the script's environment has it."""
COMMAND = """
import os, sys
errors = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT)
os.dup2(errors, 2)
from conduit_tasks import connections
from conduit_tasks.cli.main import main
connections.give(None)
connections._asked.clear()
sys.argv[0] = "conduit"
main()
"""


class Fork:
    """Calls a function in such a process."""

    def __init__(self, function: Callable[..., Any], *args: Any, **named: Any) -> None:
        self._here, there = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_call, args=(there, function, args, named))
        self._process.start()
        there.close()

    def end(self, seconds: float = 240.0) -> int | None:
        """Waits for its end. Returns its exit code, -N of one that signal N has ended; None: it has not ended."""
        self._process.join(seconds)
        return self._process.exitcode

    def answer(self, seconds: float | None = None) -> Any:
        """Returns what the function did. Raises EOFError if it was ended before, and TimeoutError."""
        if not self._here.poll(seconds):
            raise TimeoutError(f"no answer after {seconds} s")
        return self._here.recv()

    def kill(self) -> None:
        """Ends it, if it still runs."""
        self._process.kill()
        self._process.join()


def _call(to: Connection, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
    gc.freeze()
    to.send(function(*args, **named))


@contextmanager
def script(text: str, *arguments: str | Path, environment: Mapping[str, str] | None = None) -> Iterator[Application]:
    """Runs a script in a process that is ended with the block; asked like one of `subprocess`, with stderr in
    stdout, which is to be read before it is waited for. `environment`: this process's, if none is given."""
    if text.startswith(AIRFLOW):
        import tests.airflow.conftest  # noqa: F401 - Airflow's home, before its first import
    with TemporaryDirectory(prefix="conduit-fork-") as folder:
        file = Path(folder) / "script.py"
        file.write_text(text)
        application = forked._fork()
        try:
            application.start([str(file), *map(str, arguments)], os.environ if environment is None else environment)
            yield application
        finally:
            application.kill()
            application.wait()
            application.stdout.close()


def conduit(
    *arguments: str, environment: Mapping[str, str] | None = None, airflow: bool = False
) -> subprocess.CompletedProcess[str]:
    """Runs `conduit …`. `airflow`: it asks the Airflow of its environment."""
    with TemporaryDirectory(prefix="conduit-fork-") as folder:
        errors = Path(folder) / "errors"
        text = (AIRFLOW if airflow else "") + COMMAND
        with script(text, errors, *arguments, environment=environment) as application:
            said = application.stdout.read()
            code = application.wait()
        return subprocess.CompletedProcess(["conduit", *arguments], code, said, errors.read_text())
