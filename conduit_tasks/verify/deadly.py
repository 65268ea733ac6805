"""Records that end the process that touches them, as a fault in a native library would (SEMANTICS C10), or that fail
until somebody mends the cause."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from conduit_tasks.verify.actor import Crash
from conduit_tasks.verify.classes import STUBBORN


class Killed(Crash):
    """This record's doing: a child that dies of it dies alone."""


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


killer: Callable[[], None] = _kill
"""What such a record does; a world puts its own here."""


stubborn = True
"""Whether records of that class fail here: until the operator has mended it."""


def touch(record: Any) -> Any:
    """The processor: harmless but for records whose payload says `"deadly": true`, or that are stubborn."""
    if stubborn and isinstance(record.after, dict) and record.after.get("c") == STUBBORN:
        raise ValueError("not mended yet")
    if isinstance(record.after, dict) and record.after.get("deadly"):
        killer()
    return record
