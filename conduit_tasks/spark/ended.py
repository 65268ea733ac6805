"""A driver that is asked to end (SIGTERM) ends in good order: its executors stop, then its lease is given up.

What was confirmed stays; the next attempt goes on from there, at once. Only where executors may still be at work (the
JVM ended with it, or they do not stop in time) the lease is left to lapse, as after a SIGKILL.
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

HALT = 10.0
"""Seconds in which tasks that are cancelled must have ended; Spark kills a Python worker after four."""
ENDED = 143
"""Exit code of a driver that was asked to end."""


class _Halting:
    """What is known of the one time that this process is asked to end."""

    thread: threading.Thread | None = None
    halted = False
    in_job = False

    def begin(self) -> None:
        # A thread of its own speaks to the JVM over a connection of its own: this one may be in the middle of a call.
        self.thread = threading.Thread(target=self._run, name="halt", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        session = sys.modules.get("conduit_tasks.spark.session")
        self.halted = session is None or session.halt(HALT)
        if self.in_job and not self.halted:
            time.sleep(1.0)  # a JVM that is gone is noticed by who waits for it
            os._exit(ENDED)

    def end(self) -> None:
        """Raises Terminated once it is known whether anything is still at work."""
        if self.thread is not None:
            self.thread.join(HALT + 1)
            raise Terminated(busy=not self.halted)


_halting = _Halting()


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Raises Terminated in the block where SIGTERM comes; a second one changes nothing. Main thread only."""

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
    """Before a job is given to Spark, which may take long to be there. Raises Terminated where this process has been
    asked to end meanwhile."""
    _halting.end()


@contextmanager
def job() -> Iterator[None]:
    """Around a job of Spark's: asked to end meanwhile, it is cancelled, and Terminated raised once its call is over. To
    leave the call before its answer would give that answer to the next call."""
    _halting.in_job = True
    try:
        yield
    except Exception:
        _halting.end()
        raise
    finally:
        _halting.in_job = False
    _halting.end()
