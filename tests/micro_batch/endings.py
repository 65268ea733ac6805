"""Ends a process, or what stands for one, at one of its operations; a home for each try, and forks that need not import
anything."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.collection import Collection
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.connectors.file.connector import FileDestination
from conduit_tasks.delivery.isolated import in_child
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.redis_client.script import Script
from conduit_tasks.settings import forget, settings
from conduit_tasks.spool.spool import Spool

Operations = Iterable[tuple[Any, str]]
"""(class, name of its method) each."""

OPERATIONS: Operations = [
    (MicroBatches, "open"),
    (Leases, "acquire"),
    (MicroBatches, "stage"),
    (MicroBatches, "seal"),
    (Deliveries, "confirm"),
    (Acks, "begin"),
    (Acks, "commit"),
    (Collection, "begin"),
    (Collection, "end"),
    (Spool, "write_stage"),
    (Spool, "write_sealed"),
    (Spool, "collect"),
    (FileDestination, "write"),
]
"""What changes the state of a pipeline of files."""
UNSEEN = ("renew",)
"""Scripts that write what nobody reads after an end."""


def kill() -> None:
    """What nothing can handle."""
    os.kill(os.getpid(), signal.SIGKILL)


def lapse() -> None:
    """As if dead processes had been silent for longer than their leases live, which may then live for longer than a
    machine stands still: one that loses its lease while it is alive is another test."""
    client = connect(settings())
    try:
        for key in client.scan_iter("*}:lease:*"):
            client.hset(key, "until", "1")
    finally:
        client.close()


class Crash(BaseException):
    """Stands for `kill` where the process is the test's: not an Exception, so nothing may handle it."""


def end_at(
    operations: Operations,
    number: int,
    end: Callable[[], None] = kill,
    *,
    after: bool = False,
    put: Callable[[Any, str, Any], None] = setattr,
) -> Callable[[], int]:
    """Has `end` called at the `number`-th operation of all, before or `after` it is done; returns a counter of them."""
    count = 0

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            here = count == number
            if here and not after:
                end()
            answer = original(*args, **kwargs)
            if here and after:
                end()
            return answer

        return operation

    for owner, name in operations:
        put(owner, name, wrap(getattr(owner, name)))
    return lambda: count


def ends_of(monkeypatch: pytest.MonkeyPatch, operations: Operations, after: bool) -> Callable[[], list[int]]:
    """Returns, of what runs whole from now on, the numbers of operations to end at, before or `after` them: all; or
    those after which something is written before the next one, as any other end is the one before the next."""
    count, changed = 0, set[int]()
    within = threading.local()

    def operation(original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            within.operation = True
            try:
                return original(*args, **kwargs)
            finally:
                within.operation = False

        return counted

    def write(original: Callable[..., Any]) -> Callable[..., Any]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not getattr(within, "operation", False) and getattr(self, "name", "") not in UNSEEN:
                changed.add(count)
            return original(self, *args, **kwargs)

        return noted

    for owner, name in operations:
        monkeypatch.setattr(owner, name, operation(getattr(owner, name)))
    for owner, name in ((Script, "__call__"), (Script, "each"), (Spool, "put")):
        monkeypatch.setattr(owner, name, write(getattr(owner, name)))
    return lambda: [number for number in range(1, count + 1) if not after or number in changed]


def crash_at(monkeypatch: pytest.MonkeyPatch, operations: Operations, number: int, after: bool) -> Callable[[], int]:
    """As `end_at`, by a Crash."""

    def crash() -> None:
        raise Crash

    return end_at(operations, number, crash, after=after, put=monkeypatch.setattr)


def home_of(home: Path, number: int, setenv: Callable[[str, str], None]) -> Path:
    """The home of one try, which the settings name from now on."""
    this = home / str(number)
    (this / "include/pipelines").mkdir(parents=True)
    setenv("CONDUIT_HOME", str(this))
    forget()
    return this


def imported_for(run: Callable[[], Any]) -> None:
    """Imports what `run` imports in a fork, so that no fork after it has to: this process has only imported it then,
    and not used it, as a library with threads must not be used before a fork that uses it."""
    for name in in_child(_imported_by, run):
        with suppress(ImportError):
            import_module(name)


def _imported_by(run: Callable[[], Any]) -> list[str]:
    before = set(sys.modules)
    run()
    return [name for name in sys.modules if name not in before]
