"""A process of its own for what is killed, or goes on beside the test, forked from the one of the test, which has
imported all it needs: for tests of anything but the start of an interpreter."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_FORK = multiprocessing.get_context("fork")


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

    def answer(self) -> Any:
        """Returns what the function did. Raises EOFError if it was ended before."""
        return self._here.recv()


def _call(to: Connection, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> None:
    to.send(function(*args, **named))
