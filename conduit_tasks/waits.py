"""Limits of what waits for something outside this process (docs/operations.md lists them all)."""

from __future__ import annotations

import fcntl
import time
from typing import IO, Any

CALL = 60.0
"""Seconds that one call to Redis may take with all its repetitions; a thread that makes calls has ended by then."""
LOCK = 60.0
"""Seconds for which a file that another process has locked is waited for; whoever has it appends some lines."""
_LOOK = 0.05


def lock(file: IO[Any], seconds: float = LOCK) -> None:
    """Locks a file for this process alone. Raises TimeoutError where another one keeps it for so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"another process has had {file.name} locked for {seconds:g} s") from None
        time.sleep(_LOOK)
