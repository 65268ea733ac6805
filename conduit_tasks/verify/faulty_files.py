"""File calls as points of a `World`; their effects are kept by a `Disk` that can lose its power."""

from __future__ import annotations

import builtins
import fcntl
import io
import os
from collections.abc import Callable
from typing import Any

from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.world import World

Patch = tuple[Any, str, Any]
"""A patch: the object, the name of its attribute, the replacement."""


def files(world: World, disk: Disk) -> list[Patch]:  # noqa: PLR0915 - one small function per call
    real_open, real_os_open, fsync, write, pwrite = io.open, os.open, os.fsync, os.write, os.pwrite
    flock = fcntl.flock
    truncate, replace, unlink, mkdir, rmdir = os.ftruncate, os.replace, os.unlink, os.mkdir, os.rmdir

    def path_of(fd: int) -> str | None:
        """Returns the path of a file of ours; None if it is none, or no actor is calling."""
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
        return path.removeprefix(disk.root).removeprefix("/") or "."

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
            # Another process may have created it since this one looked.
            existed = os.path.exists(found)
            fd = real_os_open(path, flags, mode, dir_fd=dir_fd)
            if not existed:
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

    def written(fd: int, data: Any, put: Callable[[Any], int]) -> int:
        """Puts data into a file, all of it or, before a crash, its first half."""
        path = path_of(fd)
        if path is None:
            return put(data)

        def operation(part: Any = data) -> int:
            disk.changing(path)
            return put(part)

        view = memoryview(data)
        return world.call(
            f"write {name(path)}",
            operation,
            changes="parquet" not in path,
            torn=lambda: operation(view[: len(view) // 2]),
        )

    def os_write(fd: int, data: Any) -> int:
        return written(fd, data, lambda part: write(fd, part))

    def os_pwrite(fd: int, data: Any, offset: int) -> int:
        return written(fd, data, lambda part: pwrite(fd, part, offset))

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
