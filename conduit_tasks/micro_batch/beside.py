"""What goes on beside the work: leases, holds and marks that must be renewed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(name: str, seconds: float, call: Callable[[], bool]) -> Iterator[None]:
    """Calls it in a thread of this name every so many seconds while the block runs, as long as it answers True.

    Leaves once the thread has ended. What it raises ends the calls.
    """
    done = threading.Event()

    def run() -> None:
        while not done.wait(seconds) and call():
            pass

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
