"""Orderly end of a driver after SIGTERM: its executors stop, then it gives up its lease.

Confirmed records stay confirmed, and the next attempt goes on from there at once. Only if executors may still be at
work (the JVM ended as well, or they do not stop in time) the lease is left to lapse, as after a SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from conduit_tasks.errors import Terminated
from conduit_tasks.exit_codes import ENDED

HALT = 10.0
"""Seconds in which cancelled tasks must have ended; Spark kills a Python worker after four."""


class _Halting:
    """State of this process's end, which is asked for once."""

    thread: threading.Thread | None = None
    halted = False
    in_job = False

    def begin(self) -> None:
        # A new thread calls the JVM over a connection of its own: this thread may be in the middle of a call.
        self.thread = threading.Thread(target=self._run, name="halt", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        session = sys.modules.get("conduit_tasks.spark.session")
        self.halted = session is None or session.halt(HALT)
        if self.in_job and not self.halted:
            time.sleep(1.0)  # if the JVM is gone, the thread that waits for it notices that first
            os._exit(ENDED)

    def end(self) -> None:
        """Raises Terminated, once it is known whether anything is still at work, if an end was asked for."""
        if self.thread is not None:
            self.thread.join(HALT + 1)
            raise Terminated(busy=not self.halted)


_halting = _Halting()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raises Terminated in the block when SIGTERM comes; a second one changes nothing. Main thread only."""

    def asked(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _halting.begin()
        if not _halting.in_job:
            _halting.end()

    before = signal.signal(signal.SIGTERM, asked)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def going_on() -> None:
    """Raises Terminated if this process was asked to end. Called before a job is given to Spark, which may take long to
    start."""
    _halting.end()


@contextmanager
def job() -> Iterator[None]:
    """Surrounds a Spark job. If the process is asked to end meanwhile, the job is cancelled, and Terminated is raised
    once its call has returned: if the call were left before its answer, the next call would get that answer."""
    _halting.in_job = True
    try:
        yield
    except Exception:
        _halting.end()
        raise
    finally:
        _halting.in_job = False
    _halting.end()
