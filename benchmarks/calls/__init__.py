"""Every broker script with as much as its header lets it take. `cases` is for tests, too.

A script that has no list and no loop takes what any command takes and has no case.
"""

from __future__ import annotations

from benchmarks.calls import batches, deliveries, ingest, upkeep
from benchmarks.calls.parts import Call


def cases() -> dict[str, Call]:
    """Name of a script, and of what it is to do after a blank → the call."""
    return {**deliveries.cases(), **batches.cases(), **upkeep.cases(), **ingest.cases()}
