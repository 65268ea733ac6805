"""Patches that put the product into a `World`: clocks, event loops, threads and forked children; those of Redis, of
files and of random names are in modules of their own.

Only stable interfaces are patched: Redis commands, `os` calls, `time`, event loops. None of the product's own control
flow is replaced, except threads that only keep leases alive: in the world nothing runs in parallel.
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from conduit_tasks.verify.actor import Stuck
from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.faulty_files import Patch, files
from conduit_tasks.verify.faulty_redis import commands
from conduit_tasks.verify.machine import Orders, machine
from conduit_tasks.verify.scripts import scripts
from conduit_tasks.verify.world import World


@contextmanager
def faulty(world: World, disk: Disk) -> Iterator[None]:
    """Puts the product into the world while the block runs. It patches the whole process: run it in one of its own."""
    orders = Orders(world.seed)
    with ExitStack() as stack:
        for target, name, replacement in [
            *_clocks(world),
            *machine(world, disk, orders),
            *commands(world, orders),
            *files(world, disk),
            *_loops(world),
            *_processes(world),
        ]:
            stack.enter_context(patch.object(target, name, replacement))
        yield


def load_scripts(client: Any) -> None:
    """Loads every script into the server, so that a call is one point: otherwise an aim would be spent on the first
    call's "no such script"."""
    batch = client.pipeline(transaction=False)
    for _, _, script in scripts():
        batch.script_load(script.source)
    batch.execute()


def everywhere(*originals: Any) -> list[list[tuple[Any, str]]]:
    """Returns for each of `originals` the loaded modules of this project that know it, each with the name for it."""
    found: dict[int, list[tuple[Any, str]]] = {id(original): [] for original in originals}
    for key, module in sorted(sys.modules.items()):
        if key.startswith("conduit_tasks.") and module is not None:
            for name, value in vars(module).items():
                if (places := found.get(id(value))) is not None:
                    places.append((module, name))
    return [found[id(original)] for original in originals]


def _clocks(world: World) -> list[Patch]:
    real = time.sleep

    def sleep(seconds: float) -> None:
        if world.actor is None:
            real(seconds)
        else:
            world.sleep(seconds)

    return [
        (time, "monotonic", lambda: world.now),
        (time, "time", lambda: world.wall),
        (time, "time_ns", lambda: int(world.wall * 1e6) * 1_000),
        (time, "sleep", sleep),
    ]


# -- Redis ------------------------------------------------------------------------------------------------------


# -- waiting ----------------------------------------------------------------------------------------------------


def _loops(world: World) -> list[Patch]:
    class Selector(selectors.DefaultSelector):
        """A selector that waits on the world's clock: there is nobody outside to wait for."""

        def select(self, timeout: float | None = None) -> Any:
            world.check()
            found = super().select(0)
            if found or (timeout is not None and timeout <= 0):
                return found
            if timeout is None:
                raise Stuck("an event loop waits for nothing")
            world.sleep(timeout)
            return super().select(0)

    class Loop(asyncio.SelectorEventLoop):
        """An event loop without threads: their work runs at once. It keeps its tasks in the order of their creation."""

        def __init__(self) -> None:
            super().__init__(Selector())
            self.made: list[weakref.ref[asyncio.Task[Any]]] = []
            self.set_exception_handler(lambda loop, context: None)

        def create_task(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
            self.made.append(weakref.ref(task := super().create_task(*args, **options)))
            return task

        def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
            future = self.create_future()
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - handed to whoever awaits it
                future.set_exception(error)
            return future

        async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
            """Does nothing: there is no executor."""

    def all_tasks(loop: Any = None) -> Any:
        loop = loop or asyncio.get_running_loop()
        if not isinstance(loop, Loop):
            return every(loop)
        return [task for ref in loop.made if (task := ref()) is not None and not task.done()]

    real, every = asyncio.new_event_loop, asyncio.all_tasks

    def new_event_loop() -> asyncio.AbstractEventLoop:
        return real() if world.actor is None else Loop()

    patches: list[Patch] = [
        (asyncio, "all_tasks", all_tasks),
        (asyncio.tasks, "all_tasks", all_tasks),
        (asyncio, "new_event_loop", new_event_loop),
        (asyncio.events, "new_event_loop", new_event_loop),
    ]
    if find_spec("uvloop"):
        patches.append((import_module("uvloop"), "new_event_loop", new_event_loop))
    return patches


def _processes(world: World) -> list[Patch]:
    """Returns patches by which threads that only keep a lease do not run (with `world.beats`: run as beats), and a
    forked child is this process, until it dies."""
    from conduit_tasks.connectors.sqs import connector as sqs
    from conduit_tasks.connectors.sqs import hidden as sqs_hidden
    from conduit_tasks.delivery.isolated import ChildDied, in_child
    from conduit_tasks.delivery.lease_renewer import LeaseRenewer
    from conduit_tasks.delivery.watchdog import Watchdog
    from conduit_tasks.errors import ConduitError
    from conduit_tasks.micro_batch import every
    from conduit_tasks.verify.deadly import Killed

    @contextmanager
    def keeping(lease: Any) -> Iterator[None]:
        yield

    @contextmanager
    def nothing(*_: Any) -> Iterator[None]:
        yield

    def child(function: Callable[..., Any], *args: Any, forks: bool = True) -> Any:
        try:
            return function(*args)
        except Killed:
            world.revive()
            raise ChildDied("signal 9") from None

    def pause(self: Any, seconds: float) -> None:
        world.sleep(seconds)
        self.check()

    def keeps(self: LeaseRenewer) -> LeaseRenewer:
        def renew() -> bool:
            try:
                self._port.renew()
            except ConduitError as error:
                self.error = error
                self._ended.set()
                if self._lost is not None:
                    self._lost(error)
                return False
            return True

        kept[self] = world.beside_it("lease-renewer", self._interval, renew)
        kept[self].__enter__()
        return self

    def let_go(self: LeaseRenewer, *_: Any) -> None:
        kept.pop(self).__exit__(None, None, None)

    kept: dict[LeaseRenewer, Any] = {}
    keep, repeat, fork = everywhere(every.keeping, every.every, in_child)
    goes_on: list[Patch] = [(module, name, world.beside_it) for module, name in repeat]
    stops: list[Patch] = [
        *((module, name, keeping) for module, name in keep),
        *((module, name, nothing) for module, name in repeat),
    ]
    return [
        *(goes_on if world.beats else stops),
        *((module, name, child) for module, name in fork),
        (sqs, "ThreadPoolExecutor", Inline),
        (sqs_hidden, "ThreadPoolExecutor", Inline),
        (sqs_hidden, "threading", _Threading),
        (Watchdog, "__enter__", lambda self: self),
        (Watchdog, "__exit__", lambda self, *_: None),
        (LeaseRenewer, "__enter__", keeps if world.beats else lambda self: self),
        (LeaseRenewer, "__exit__", let_go if world.beats else lambda self, *_: None),
        (LeaseRenewer, "pause", pause),
    ]


class Inline:
    """A pool whose caller does the work."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """Handles one item after the other."""
        return [function(item) for item in items]


class _Threading:
    """The parts of `threading` that `sqs.hidden` uses."""

    Lock, Event = threading.Lock, threading.Event

    @staticmethod
    def Thread(**_: Any) -> Idle:
        return Idle()


class Idle:
    """A thread that does nothing, in place of one that only keeps something: in the world nothing runs in parallel."""

    def __init__(self, **_: Any) -> None:
        pass

    def start(self) -> None:
        """Does nothing."""

    def join(self, timeout: float | None = None) -> None:
        """Does nothing."""
