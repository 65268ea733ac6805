"""Python's cycle collector, tuned for records."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 200_000
"""New objects between two collections; Python's own 700 is less than a hundred records."""


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Makes cycle collections rare while the block runs, then as before; for one block at a time in a process.

    Records hold no cycles and are freed by reference count. Checking each of them again and again cost a third of a
    pass (docs/benchmarks.md). The collector stays on, because a user's function may make cycles.
    """
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
