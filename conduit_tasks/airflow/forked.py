"""Applications that need no start of a Python: forked from the task's process, which has loaded their modules.

This needs tasks that run in children of the scheduler (LocalExecutor, see `preload`), and a Spark that is a Connect
server, or a JVM that the application starts by the command of a submit. The application is still a process of its own:
same arguments, environment, exit codes and output lines, no file of Airflow's open, none of its logging. It is forked
before the task starts a thread, which could hold a lock at that moment, and then waits for its arguments.
"""

from __future__ import annotations

import atexit
import contextvars
import gc
import json
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from setproctitle import setproctitle

from conduit_tasks.spark.jvm import prepare

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark.core.context",
    "pyspark.testing.utils",
    "conduit_tasks.micro_batch.halting",
    "conduit_tasks.micro_batch.work_through",
    "conduit_tasks.processors.registry",
    "conduit_tasks.application.app",
    "conduit_tasks.spark.jvm",
    "conduit_tasks.spark.plain",
    "conduit_tasks.spark.session",
    "conduit_tasks.spark.shipping",
)
"""Modules that an application needs."""
CONNECT = ("pyspark.sql.connect.functions", "pyspark.sql.connect.session", "conduit_tasks.spark.connect")
"""Modules that an application at a Connect server needs besides."""
SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCHLD,
)
"""Signals that Airflow or Python may have handlers for."""


_kept: list[object] = []
"""Objects of the parent that would close the forked process's standard streams if they were collected."""


class Application:
    """A forked application, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, command: int, output: int) -> None:
        self.pid, self._command = pid, os.fdopen(command, "w", encoding="utf-8", errors="surrogateescape")
        self.stdout = os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], jvm: Sequence[str] = ()) -> None:
        """Makes it run a Python file with arguments; `jvm`: command line of the JVM that it starts as its
        child if it needs one, see `spark.jvm`. Raises OSError if it has died meanwhile."""
        with self._command as out:
            json.dump([list(arguments), dict(environment), list(jvm)], out)

    @property
    def started(self) -> bool:
        """Whether it was given its arguments."""
        return self._command.closed

    def close(self) -> None:
        """Stops reading its output; kills it if it was not started."""
        self.stdout.close()
        if not self.started:
            self._command.close()
            self.kill()
            self.wait()

    def poll(self) -> int | None:
        """Returns its exit code, negative for a signal; None while it runs."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Waits until it has ended and returns its exit code, as `poll`."""
        code = self._wait(0)
        assert code is not None
        return code

    def kill(self) -> None:
        """Sends SIGKILL if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has waited for it: psutil, when the task is killed
                self.returncode = -signal.SIGTERM
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def loaded() -> bool:
    """Returns whether this process has loaded the modules of an application, and may be forked: it has one thread."""
    return all(name in sys.modules for name in MODULES) and threading.active_count() == 1


@contextmanager
def spare() -> Iterator[Application | None]:
    """Yields an application that waits for its arguments; it ends with the block if it was not started. Yields None if
    this process may not be forked (see `loaded`)."""
    application = _fork() if loaded() else None
    try:
        yield application
    finally:
        if application is not None:
            application.close()


def _fork() -> Application:
    command, to_child = os.pipe()
    from_child, output = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(command, output)
    os.close(command)
    os.close(output)
    return Application(pid, to_child, from_child)


def _child(command: int, output: int) -> NoReturn:
    """Runs the application in the forked process. Never returns into the parent's code."""
    gc.freeze()  # see `delivery.isolated`
    code = 0
    try:
        said = _alone(command, output)
        if not said:
            os._exit(0)
        arguments, environment, jvm = json.loads(said.decode("utf-8", "surrogateescape"))
        _begin(arguments, environment)
        if jvm:
            prepare(jvm)
        # Without the task's own context variables: the application sets its own fields for the log.
        contextvars.Context().run(runpy.run_path, arguments[0], run_name="__main__")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code and not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does with what nobody catches
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                continue
        os._exit(code)


def _alone(command: int, output: int) -> bytes:
    """Releases the files and signal handlers of the task; returns the command once it was given, b"" if it never is."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        # Line by line: a reader sees all output up to a kill.
        stream = os.fdopen(number, mode, 1, encoding="utf-8", errors="backslashreplace", closefd=False)
        # Airflow's own would close the number if it were collected.
        _kept.extend((getattr(sys, name), getattr(sys, f"__{name}__")))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    # Not closed: an object of the parent's that is collected later would close whatever has that number by then.
    for number in range(3, _highest() + 1):
        if number not in (command, null) and _is_open(number):
            os.dup2(null, number, inheritable=False)
    said = b""
    while some := os.read(command, 1 << 16):
        said += some
    os.close(command)
    return said


def _highest() -> int:
    """Returns the highest number that an open file may have."""
    try:
        return max(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # not Linux, or not root: nobody may look at a task of Airflow's
        return min(os.sysconf("SC_OPEN_MAX"), 4096)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _begin(arguments: list[str], environment: dict[str, str]) -> None:
    """Makes the process like a Python that has just been started with these arguments and this environment."""
    from conduit_tasks.settings import forget

    # The name in lists of processes; setproctitle finds its place by the environment, so before that is cleared.
    setproctitle(" ".join([sys.executable, *arguments]))
    atexit._clear()  # the task's exit handlers are the task's
    os.environ.clear()
    os.environ.update(environment)
    forget()
    sys.argv = arguments
    sys.excepthook = sys.__excepthook__
    _forget_logging()


def _forget_logging() -> None:
    """Removes all handlers and levels that Airflow has set: they write to the task's own channel."""
    logging.captureWarnings(False)
    known = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.root, *known):
        _kept.extend(logger.handlers)
        logger.handlers.clear()
        logger.filters.clear()
        if logger.level != logging.NOTSET:  # to set it looks at all other loggers
            logger.setLevel(logging.NOTSET)
        logger.propagate, logger.disabled = True, False
    logging.root.setLevel(logging.WARNING)
    logging.disable(logging.NOTSET)
    if (structlog := sys.modules.get("structlog")) is not None:
        structlog.reset_defaults()
