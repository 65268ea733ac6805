"""Values that a process gets from its machine, drawn from the seed instead: random names, and undefined orders.

A history is a function of its seed alone. Items whose contract defines no order (entries of a folder, fields of a hash)
come in an order that the seed draws, so that nothing may rely on it.
"""

from __future__ import annotations

import os
import secrets
import socket
import uuid
from collections.abc import Iterator
from random import Random
from typing import Any, TypeVar

from conduit_tasks.verify.disk import Disk
from conduit_tasks.verify.faulty_files import Patch
from conduit_tasks.verify.world import World

T = TypeVar("T")

PATIENCE = 300.0
"""Seconds that an answer of Redis may take if nothing is wrong except that this machine is busy."""


class Orders:
    """Orders that nothing promises, drawn by a random generator of their own."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"orders {seed}")

    def of(self, found: list[T]) -> list[T]:
        """Shuffles the list, and returns it."""
        self._random.shuffle(found)
        return found

    def fields(self, answer: Any) -> Any:
        """Returns a hash of Redis in another order; any other answer as it is."""
        return dict(self.of(sorted(answer.items()))) if isinstance(answer, dict) else answer


def machine(world: World, disk: Disk, orders: Orders) -> list[Patch]:
    """Returns patches of names, numbers and orders."""
    names = Random(f"names {world.seed}")
    real_listdir, real_scandir = os.listdir, os.scandir

    def ours(path: Any) -> bool:
        path = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fspath(path))
        return isinstance(path, str) and disk.holds(path)

    def listdir(path: Any = ".") -> list[Any]:
        found = real_listdir(path)
        return orders.of(sorted(found)) if ours(path) else found

    def scandir(path: Any = ".") -> Any:
        return _Entries(orders.of(sorted(real_scandir(path), key=_name))) if ours(path) else real_scandir(path)

    return [
        (uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda count=32: names.randbytes(count).hex()),
        # As on machines that share nothing but a folder: the same number everywhere.
        (os, "getpid", lambda: 1),
        (socket, "gethostname", lambda: "machine"),
        (os, "listdir", listdir),
        (os, "scandir", scandir),
    ]


def _name(entry: os.DirEntry[str]) -> str:
    return entry.name


class _Entries:
    """Replacement for the result of `os.scandir`."""

    def __init__(self, entries: list[os.DirEntry[str]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[os.DirEntry[str]]:
        return self._entries

    def __next__(self) -> os.DirEntry[str]:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        """Does nothing: all entries are read already."""

    def close(self) -> None:
        """Does nothing: all entries are read already."""
