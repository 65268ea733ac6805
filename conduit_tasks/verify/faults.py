"""Puts the product into a `World`: operations on Redis and on files are its points, waits and clocks are its own.

Only seams that stay are used: Redis commands, `os` calls, `time`, event loops. Nothing of the product's own order of
things is replaced, but for threads that only keep leases alive: in the world nothing happens beside.
"""

from __future__ import annotations

import asyncio
import builtins
import fcntl
import io
import os
import selectors
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

import redis

from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.world import Stuck, World

CLOCK = "conduit-verify:clock"
"""Redis hash with the world's seconds and microseconds, which scripts read instead of TIME."""

_READS = frozenset(
    ["GET", "HGET", "HGETALL", "HMGET", "SMEMBERS", "EXISTS", "TYPE", "TIME", "SCAN", "KEYS", "HLEN", "SCARD", "HSCAN"]
)
_HARMLESS = frozenset({"INFO", "CONFIG", "PING", "CLIENT"})


@contextmanager
def faulty(world: World, disk: Disk) -> Iterator[None]:
    """The product works in the world meanwhile. Everything of this process is concerned: run it in one of its own."""
    with ExitStack() as stack:
        for target, name, replacement in [
            *_clocks(world),
            *_redis(world),
            *_files(world, disk),
            *_loops(world),
            *_processes(world),
        ]:
            stack.enter_context(patch.object(target, name, replacement))
        yield


def everywhere(original: Any) -> list[tuple[Any, str]]:
    """Modules of this project, loaded by now, that know `original`, and by which name."""
    return [
        (module, name)
        for key, module in sorted(sys.modules.items())
        if key.startswith("conduit_tasks.") and module is not None
        for name, value in list(vars(module).items())
        if value is original
    ]


Patch = tuple[Any, str, Any]


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
        (time, "sleep", sleep),
    ]


# -- Redis ------------------------------------------------------------------------------------------------------


def _redis(world: World) -> list[Patch]:
    from redis.client import Pipeline

    from conduit_tasks.broker import scripts

    execute, run = redis.Redis.execute_command, Pipeline.execute
    names: dict[str, str] = {}
    patches: list[Patch] = []
    for name, script in list(vars(scripts).items()):
        if isinstance(script, scripts.Script):
            patches.append((scripts, name, moved := _on_our_clock(script)))
            names[moved.sha] = moved.name

    def on_our_clock(client: Any, *args: Any) -> Any:
        """The script and the time it reads, in one round trip."""
        both = client.pipeline(transaction=False)
        both.execute_command("HSET", CLOCK, "s", str(int(world.wall)), "us", str(int(world.now % 1 * 1e6)))
        both.execute_command(*args)
        answer = run(both, raise_on_error=False)[1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def execute_command(self: Any, *args: Any, **options: Any) -> Any:
        word = str(args[0]).upper()
        if world.actor is None or word in _HARMLESS:
            world.check()
            return execute(self, *args, **options)
        if word == "TIME":
            return (int(world.wall), int(world.now % 1 * 1e6))
        script = word in ("EVALSHA", "EVAL")

        def operation() -> Any:
            return on_our_clock(self, *args) if script else execute(self, *args, **options)

        what = names.get(str(args[1]), "a script") if script else " ".join(map(str, args[:2]))
        # The client sends a command again whose answer was lost (invariant 5).
        return world.call(what, operation, changes=script or word not in _READS, repeatable=script)

    def execute_pipeline(self: Any, *args: Any, **options: Any) -> Any:
        if world.actor is None:
            world.check()
            return run(self, *args, **options)
        commands = [command[0] for command in self.command_stack]
        changes = any(str(command[0]).upper() not in _READS for command in commands)
        answers = world.call("commands", lambda: run(self, *args, **options), changes=changes)
        now = (int(world.wall), int(world.now % 1 * 1e6))
        return [now if command[0] == "TIME" else answer for command, answer in zip(commands, answers)]

    return [*patches, (redis.Redis, "execute_command", execute_command), (Pipeline, "execute", execute_pipeline)]


def _on_our_clock(script: Any) -> Any:
    """The script reading the world's clock."""
    import hashlib
    from dataclasses import replace

    source = script.source.replace("redis.call('TIME')", f"redis.call('HMGET', '{CLOCK}', 's', 'us')")
    return replace(script, source=source, sha=hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


# -- files ------------------------------------------------------------------------------------------------------


def _files(world: World, disk: Disk) -> list[Patch]:  # noqa: PLR0915 - one small function per call
    real_open, real_os_open, fsync, write, pwrite = io.open, os.open, os.fsync, os.write, os.pwrite
    flock = fcntl.flock
    truncate, replace, unlink, mkdir, rmdir = os.ftruncate, os.replace, os.unlink, os.mkdir, os.rmdir

    def path_of(fd: int) -> str | None:
        """Of a file of ours; None where it is none, or nobody looks."""
        if world.actor is None:
            world.check()
            return None
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            return None
        return path if disk.holds(path) else None

    def ours(path: Any, dir_fd: int | None = None) -> str | None:
        if world.actor is None:
            world.check()
            return None
        text = os.fspath(path)
        if not isinstance(text, str):
            return None
        if dir_fd is not None:
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.abspath(text)
        return text if disk.holds(text) else None

    def name(path: str) -> str:
        return path.removeprefix(disk.root + "/")

    def opened(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        path = ours(file) if isinstance(file, str | os.PathLike) and set(mode) & set("wxa+") else None
        if path is None:
            return real_open(file, mode, *args, **options)

        def operation() -> Any:
            existed = os.path.exists(path)
            if existed and "w" in mode:
                disk.changing(path)
            out = real_open(file, mode, *args, **options)
            if not existed:
                disk.made(path)
            return out

        return world.call(f"open {name(path)}", operation)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        found = ours(path, dir_fd) if flags & os.O_CREAT else None
        if found is None or os.path.exists(found):
            return real_os_open(path, flags, mode, dir_fd=dir_fd)

        def operation() -> int:
            fd = real_os_open(path, flags, mode, dir_fd=dir_fd)
            disk.made(found)
            return fd

        return world.call(f"create {name(found)}", operation)

    def os_fsync(fd: int) -> None:
        path = path_of(fd)
        if path is None:
            return None if world.actor else fsync(fd)
        return world.call(f"fsync {name(path)}", lambda: disk.synced(path))

    def lock(fd: Any, operation: int) -> None:
        path = path_of(fd) if isinstance(fd, int) else None
        if path is None:
            return flock(fd, operation)
        return world.call(f"lock {name(path)}", lambda: flock(fd, operation))

    def os_write(fd: int, data: Any) -> int:
        path = path_of(fd)
        if path is None:
            return write(fd, data)

        def operation(part: Any = data) -> int:
            disk.changing(path)
            return write(fd, part)

        view = memoryview(data)
        return world.call(
            f"write {name(path)}",
            operation,
            changes="parquet" not in path,
            torn=lambda: operation(view[: len(view) // 2]),
        )

    def os_pwrite(fd: int, data: Any, offset: int) -> int:
        path = path_of(fd)
        if path is None:
            return pwrite(fd, data, offset)

        def operation(part: Any = data) -> int:
            disk.changing(path)
            return pwrite(fd, part, offset)

        view = memoryview(data)
        return world.call(
            f"write {name(path)}",
            operation,
            changes="parquet" not in path,
            torn=lambda: operation(view[: len(view) // 2]),
        )

    def os_ftruncate(fd: int, length: int) -> None:
        path = path_of(fd)
        if path is None:
            return truncate(fd, length)

        def operation() -> None:
            disk.changing(path)
            truncate(fd, length)

        return world.call(f"cut {name(path)}", operation)

    def os_replace(source: Any, target: Any, **options: Any) -> None:
        path = ours(target)
        if path is None:
            return replace(source, target, **options)

        def operation() -> None:
            disk.moving(os.path.abspath(os.fspath(source)), path)
            replace(source, target, **options)

        return world.call(f"rename {name(path)}", operation)

    def os_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        found = ours(path, dir_fd)
        if found is None or not os.path.lexists(found):
            return unlink(path, dir_fd=dir_fd)

        def operation() -> None:
            disk.removing(found)
            unlink(path, dir_fd=dir_fd)

        return world.call(f"remove {name(found)}", operation)

    def os_rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        found = ours(path, dir_fd)
        if found is None:
            return rmdir(path, dir_fd=dir_fd)

        def operation() -> None:
            disk.removing(found + "/")
            rmdir(path, dir_fd=dir_fd)

        return world.call(f"remove {name(found)}/", operation)

    def os_mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        found = ours(path, dir_fd)
        if found is None or os.path.exists(found):
            return mkdir(path, mode, dir_fd=dir_fd)

        def operation() -> None:
            mkdir(path, mode, dir_fd=dir_fd)
            disk.made(found + "/")

        return world.call(f"mkdir {name(found)}", operation)

    return [
        (fcntl, "flock", lock),
        (io, "open", opened),
        (builtins, "open", opened),
        (os, "open", os_open),
        (os, "fsync", os_fsync),
        (os, "write", os_write),
        (os, "pwrite", os_pwrite),
        (os, "ftruncate", os_ftruncate),
        (os, "replace", os_replace),
        (os, "rename", os_replace),
        (os, "unlink", os_unlink),
        (os, "remove", os_unlink),
        (os, "rmdir", os_rmdir),
        (os, "mkdir", os_mkdir),
    ]


# -- waiting ----------------------------------------------------------------------------------------------------


def _loops(world: World) -> list[Patch]:
    class Selector(selectors.DefaultSelector):
        """Waits on the world's clock: there is nobody outside to be waited for."""

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
        """What it would run in a thread runs at once."""

        def __init__(self) -> None:
            super().__init__(Selector())
            self.set_exception_handler(lambda loop, context: None)

        def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
            future = self.create_future()
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - handed to whoever awaits it
                future.set_exception(error)
            return future

        async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
            """There is none."""

    real = asyncio.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        return real() if world.actor is None else Loop()

    patches: list[Patch] = [
        (asyncio, "new_event_loop", new_event_loop),
        (asyncio.events, "new_event_loop", new_event_loop),
    ]
    if find_spec("uvloop"):
        patches.append((import_module("uvloop"), "new_event_loop", new_event_loop))
    return patches


def _processes(world: World) -> list[Patch]:
    """Threads that only keep a lease do not run; a forked child is this process, until it dies."""
    from conduit_tasks.delivery.keeper import Keeper
    from conduit_tasks.micro_batch import stage
    from conduit_tasks.micro_batch.isolated import ChildDied, in_child
    from conduit_tasks.verify.deadly import Killed

    @contextmanager
    def keeping(lease: Any) -> Iterator[None]:
        yield

    def child(function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Killed:
            world.revive()
            raise ChildDied("signal 9") from None

    def pause(self: Any, seconds: float) -> None:
        world.sleep(seconds)
        self.check()

    return [
        *((module, name, keeping) for module, name in everywhere(stage.keeping)),
        *((module, name, child) for module, name in everywhere(in_child)),
        (Keeper, "__enter__", lambda self: self),
        (Keeper, "__exit__", lambda self, *_: None),
        (Keeper, "pause", pause),
    ]
