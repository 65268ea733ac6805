"""Small work in a child process of the application itself: no Spark job, and where there is no JVM yet, no JVM.

It is a process of its own, as a Python worker of Spark's is: a record may kill it, a forceful stop or the end of its
application ends it, and what it took of memory it gives back.
"""

from __future__ import annotations

import logging
import os
import pickle
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from conduit_tasks.spark import keeper
from conduit_tasks.spark.ended import going_on

log = logging.getLogger(__name__)


class WorkerLost(Exception):
    """The child process ended in the middle of its work. The attempt counts as one without progress (C10)."""


class LocalExecutors:
    """The child process that does small work, see `session.Executors`; to be made while this process has one thread."""

    def __init__(self) -> None:
        self._keeper = keeper.fork()
        self._pid = 0
        self._jobs: socket.socket | None = None

    def run_all(self, function: Callable[[Any], Any], pieces: list[Any]) -> list[Any]:
        """Calls `function` with every piece, one after the other. What it raises is raised here, too. Raises
        WorkerLost."""
        going_on()
        jobs = self._worker()
        going_on()
        job = pickle.dumps((function, pieces), protocol=pickle.HIGHEST_PROTOCOL)
        try:
            keeper.send(jobs, job)
            data = keeper.receive(jobs)
        except (EOFError, OSError) as error:
            how = self._forget()
            raise WorkerLost(
                f"the process that worked on it ended in the middle ({how}); nothing is lost, the next attempt goes on"
            ) from error
        if data[-1]:
            self._forget()  # it has taken much memory, and ends
        well, answer = pickle.loads(data)  # noqa: S301 - written by our own child
        if not well:
            raise answer
        return list(answer)

    def warm(self) -> None:
        """Starts the child, so that the first work need not wait for it."""
        self._worker()

    def halt(self, seconds: float) -> bool:
        """Kills the child and waits until it, and what it forked, has ended. Any thread."""
        if (jobs := self._jobs) is None:
            return True
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return _over(jobs, seconds)

    def close(self) -> None:
        """Ends child and keeper."""
        for each in (self._jobs, self._keeper):
            if each is not None:
                each.close()
        self._jobs = None

    def _worker(self) -> socket.socket:
        if self._jobs is not None and _over(self._jobs, 0.0):
            self._forget()  # it was killed while it had nothing to do
        if self._jobs is None:
            try:
                self._pid, self._jobs = keeper.started(self._keeper)
            except OSError as error:
                raise WorkerLost(f"no process can be started for the work: {error}") from error
        return self._jobs

    def _forget(self) -> str:
        """Forgets the child, which has ended. Returns how."""
        jobs, self._jobs = self._jobs, None
        if jobs is not None:
            jobs.close()
        try:
            return keeper.ended(self._keeper)
        except (EOFError, OSError):
            return "so did the one that started it"


def made() -> LocalExecutors | None:
    """Returns executors of this process; None if it has threads already, or no process can be forked: then all work is
    done in Spark."""
    if threading.active_count() > 1:
        return None
    try:
        return LocalExecutors()
    except OSError as error:
        log.warning("small work is done in Spark, too, as no process can be started for it: %s", error)
        return None


def _over(jobs: socket.socket, seconds: float) -> bool:
    """Waits `seconds` at most; returns whether all processes at the other end have ended."""
    if (number := jobs.fileno()) < 0:
        return True
    poll = select.poll()
    poll.register(number, 0)
    return bool(poll.poll(seconds * 1000))
