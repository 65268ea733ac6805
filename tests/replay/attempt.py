"""One replay in a process of its own, which may kill itself.

It is forked from the test's, which has all it needs: what is tested is the replay, not the start of an interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any

from conduit_tasks.broker.access import Access
from conduit_tasks.connectors.base import Limit
from conduit_tasks.resend import prepare
from conduit_tasks.resend.replay import replay
from conduit_tasks.spool.spool import Spool

NOWHERE = "nowhere"
_FORK = multiprocessing.get_context("fork")


class Attempt:
    """Replays from START to END, as WHAT (all, missing), under the name RUN, and kills itself at `point`: `before
    SCRIPT` or `after SCRIPT`, or of a file of the spool."""

    def __init__(self, *words: str, point: str = NOWHERE, destinations: tuple[str, ...] = ()) -> None:
        self._here, there = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_replay, args=(there, words, point, destinations))
        self._process.start()
        there.close()

    def end(self, seconds: float = 240.0) -> int | None:
        """Waits for it; returns its exit code, -N of one that signal N has ended, None if it has not ended."""
        self._process.join(seconds)
        return self._process.exitcode

    def delivered(self) -> int:
        """Returns how many records it delivered. Raises EOFError if it did not come to its end."""
        return int(self._here.recv())


def _replay(to: Connection, words: tuple[str, ...], point: str, destinations: tuple[str, ...]) -> None:
    start, end, what, run = words
    prepare.LIMIT = Limit(records=7)
    if point != NOWHERE:
        kill_at(point)
    to.send(sum(o.delivered for o in replay("p", start, end, destinations, what, run=run, wait=60.0)))


def kill_at(point: str) -> None:
    """SIGKILL at the first time this point is reached."""
    when, _, name = point.partition(" ")
    run, put = Access.run, Spool.put

    def dying(call: Any, what: str, *args: Any, **named: Any) -> Any:
        if what == name and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*args, **named)
        if what == name and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def script(self: Access, script: Any, keys: Any, **args: Any) -> Any:
        return dying(run, script.name, self, script, keys, **args)

    def file(self: Spool, path: str, data: bytes) -> None:
        dying(put, path, self, path, data)

    Access.run, Spool.put = script, file  # type: ignore[method-assign, assignment]
