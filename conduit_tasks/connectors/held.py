"""Connections of sources that stay open from read to read (`capabilities.Held`), in the process of the source's node."""

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

    def __init__(self, source: str, told: Callable[[], Position]) -> None:
        self.source, self.told = source, told
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


_scope: Scope | None = None


def scope() -> Scope | None:
    """Returns the scope of this process; None if it is not that of a source's node."""
    return _scope


def holds(source: str) -> bool:
    """Returns whether this process is that of a source's node."""
    return _scope is not None and _scope.source == source


@contextmanager
def holding(source: str, told: Callable[[], Position]) -> Iterator[Scope]:
    """Keeps the connection that is opened in the block open until its end. If the block raises, the connection is ended
    at once."""
    global _scope  # noqa: PLW0603 - a process works for one node
    before, made = _scope, Scope(source, told)
    _scope = made
    at_once = True
    try:
        yield made
        at_once = False
    finally:
        _scope = before
        if made.connection is not None:
            made.connection.close(at_once=at_once)
