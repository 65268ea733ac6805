"""Connections that this process holds for its sources (`capabilities.Held`): all reads of one share it, and it is given
the acks that were committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from conduit_tasks.connectors.base import Position
from conduit_tasks.errors import BrokerUnavailable


class Connection(Protocol):
    """An open connection of a source."""

    def acked(self, position: Position) -> None:
        """Gives the acks up to a position that the pipeline has committed; what was given is not given again."""

    @property
    def unacked(self) -> bool:
        """Whether something that was staged is not acked yet."""

    def close(self, *, at_once: bool) -> None:
        """Ends the connection, and all processes of it; `at_once`: without asking."""


class Scope:
    """The connection of one source, if it is open, for as long as its node works. `told`: returns the position that the
    pipeline has committed as acked."""

    def __init__(self, told: Callable[[], Position]) -> None:
        self.told = told
        self.connection: Connection | None = None

    def give_acks(self) -> None:
        """Gives the connection the acks that were committed."""
        if self.connection is not None:
            self.connection.acked(self.told())

    def settle(self, seconds: float) -> None:
        """Waits for acks that are still to come, and gives them; `seconds` at most."""
        deadline = time.monotonic() + seconds
        while self.connection is not None:
            try:
                self.give_acks()
            except BrokerUnavailable:
                return
            if not self.connection.unacked or time.monotonic() > deadline:
                return
            time.sleep(0.05)


_scopes: dict[tuple[str, str], Scope] = {}
"""By pipeline and source; one, unless a process works for several nodes."""


def scope(pipeline: str, source: str) -> Scope | None:
    """Returns the scope of a source; None if this process does not hold it."""
    return _scopes.get((pipeline, source))


@contextmanager
def holding(pipeline: str, source: str, told: Callable[[], Position]) -> Iterator[Scope]:
    """Keeps the connection of a source that is opened in the block open until its end. If the block raises, the
    connection is ended at once."""
    made = _scopes[pipeline, source] = Scope(told)
    at_once = True
    try:
        yield made
        at_once = False
    finally:
        _scopes.pop((pipeline, source), None)
        if made.connection is not None:
            made.connection.close(at_once=at_once)
