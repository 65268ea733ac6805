"""Records that end the process that touches them, as a fault in a native library would (SEMANTICS C10), or that fail
until somebody fixes the cause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from conduit_tasks.verify.actor import Crash
from conduit_tasks.verify.classes import STUBBORN


class Killed(Crash):
    """A crash caused by a deadly record: a child that dies of it dies alone."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


killer: Callable[[], None] = _kill
"""Effect of a deadly record; a world puts its own here."""


stubborn = True
"""Whether records of the class `STUBBORN`, and those that `spoil` gets, fail: until the operator has fixed the
cause."""


def touch(record: Any) -> Any:
    """Returns the record; calls `killer` if its payload says `"deadly": true`, raises ValueError if it is stubborn."""
    if stubborn and isinstance(record.after, dict) and record.after.get("c") == STUBBORN:
        raise ValueError("not fixed yet")
    if isinstance(record.after, dict) and record.after.get("deadly"):
        killer()
    return record


def spoil(record: Any) -> Any:
    """Returns the record. Raises ValueError until the cause is fixed."""
    if stubborn:
        raise ValueError("spoiled")
    return record
