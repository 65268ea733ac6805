"""Processors of the tests, called by name in pipeline files: they run in executors, in processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from conduit_tasks.record.record import Record

HELD = 700
"""The first record that `slow` holds up where it is told to."""


def hold() -> Path:
    """As long as this file is there, `slow` lets no record pass from number `HELD` on: its node stays in the middle."""
    return Path(os.environ["CONDUIT_HOME"]) / "hold"


def held() -> Path:
    """It is there once `slow` waits."""
    return hold().with_name("held")


def slow(record: Record) -> Record:
    """A third of a millisecond each: 3,000 records keep a node busy for a second."""
    time.sleep(0.0003)
    while isinstance(record.after, dict) and record.after["n"] >= HELD and hold().exists():
        held().touch()
        time.sleep(0.01)
    return record


def waits(record: Record) -> Record:
    """Holds up records whose payload says `waits`, as long as the file `hold` is there."""
    while isinstance(record.after, dict) and record.after.get("waits") and hold().exists():
        time.sleep(0.01)
    return record


def deadly(record: Record) -> Record:
    """Ends its process without a word where the payload says `deadly`; as a fault in a native library would."""
    if isinstance(record.after, dict) and record.after.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return record
