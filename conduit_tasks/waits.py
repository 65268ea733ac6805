"""Limits of waits for something outside this process, and the waits for a file's lock and for processes to end
(docs/operations.md lists the limits)."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

CALL = 60.0
"""Seconds that one call to Redis may take with all its retries; a thread that makes calls has ended by then."""
LOCK = 60.0
"""Seconds to wait for a file that another process has locked; that process only appends some lines."""
_LOOK = 0.05


def lock(file: IO[Any], seconds: float = LOCK) -> None:
    """Locks a file for this process alone. Raises TimeoutError if another process holds the lock for `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has had {file.name} locked for {seconds:g} s") from None
        time.sleep(_LOOK)


def still_running(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Waits at most `seconds` for processes to end; returns the processes that still run. A zombie has ended.

    The exit code of a child is left to its parent: `psutil.wait_procs` would take it, and `Popen.wait` would return 0.
    """
    deadline = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(_LOOK)
    return left


def _runs(process: psutil.Process) -> bool:
    import psutil

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
