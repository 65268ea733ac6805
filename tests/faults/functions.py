"""Processors of the tests, called by name in pipeline files: they run in executors, in processes of their own."""

from __future__ import annotations

import os
import signal
import time

from conduit_tasks.record.record import Record


def slow(record: Record) -> Record:
    """A third of a millisecond each: 3,000 records keep a node busy for a second."""
    time.sleep(0.0003)
    return record


def deadly(record: Record) -> Record:
    """Ends its process without a word where the payload says `deadly`; as a fault in a native library would."""
    if isinstance(record.after, dict) and record.after.get("deadly"):
        os.kill(os.getpid(), signal.SIGKILL)
    return record
