"""Check that a connector leaves nothing open: threads, sockets and other file descriptors of this process."""

from __future__ import annotations

import gc
import os
import stat
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from conduit_tasks.connectors.acceptance.report import Unmet

PATIENCE = 5.0
"""Seconds that closing may take: the other end of a connection may be a thread of this process."""
NAMED = 3
"""Number of files that a report names."""


@dataclass(frozen=True)
class Open:
    """Numbers of open resources. `paths`: of the files, how often each is open."""

    threads: int
    sockets: int
    files: int
    paths: Counter[str]

    @classmethod
    def now(cls) -> Open:
        sockets, paths = 0, Counter[str]()
        for name in os.listdir("/dev/fd"):
            try:
                if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                    sockets += 1
                else:
                    paths[_path(name)] += 1
            except OSError:
                continue  # The listing's own descriptor, closed by now.
        return cls(threading.active_count(), sockets, paths.total(), paths)

    def more_than(self, before: Open) -> str:
        """Returns the resources opened since `before`, in words; empty if there are none."""
        said = []
        for name in ("threads", "sockets", "files"):
            more = getattr(self, name) - getattr(before, name)
            if more > 0:
                said.append(f"{more} {name if more > 1 else name[:-1]}")
        if self.files > before.files:
            new = sorted((self.paths - before.paths).elements())
            said[-1] += f" ({', '.join(new[:NAMED])}{', …' if new[NAMED:] else ''})"
        return ", ".join(said)


def _path(descriptor: str) -> str:
    """Returns what a descriptor stands for; "a file" where the system does not tell."""
    try:
        return os.readlink(f"/dev/fd/{descriptor}")
    except OSError:
        return "a file"


@contextmanager
def leaving_nothing_open() -> Iterator[None]:
    """Raises Unmet if more is open afterwards, or if something was closed by garbage collection only.

    Wrap a second use in it: resources that the first use creates once for the process (an executor's pool, a native
    runtime) are no leak.
    """
    before = Open.now()
    with warnings.catch_warnings(record=True) as seen, _collecting_only_what_is_new():
        warnings.simplefilter("always", ResourceWarning)
        yield
        deadline = time.monotonic() + PATIENCE
        while (more := Open.now().more_than(before)) and time.monotonic() < deadline:
            time.sleep(0.02)
        gc.collect()
    if more:
        raise Unmet(f"after close() there is more open than before: {more}")
    unclosed = [str(each.message) for each in seen if issubclass(each.category, ResourceWarning)]
    if unclosed:
        raise Unmet(f"something was dropped without being closed: {unclosed[0]}")


@contextmanager
def _collecting_only_what_is_new() -> Iterator[None]:
    """Freezes the existing objects, so that garbage left by others is neither reported nor collected."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
