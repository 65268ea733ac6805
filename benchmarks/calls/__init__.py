"""Every broker script with as much as its header lets it take. `cases` is for tests, too.

A script that has no list and no loop takes what any command takes and has no case.
"""

from __future__ import annotations

from benchmarks.calls import batches, deliveries, ingest, issues, upkeep
from benchmarks.calls.parts import Call
from benchmarks.calls.stored import MUCH, stored


def bare() -> dict[str, Call]:
    """The same without those that bring much with them."""
    return {**deliveries.cases(), **batches.cases(), **upkeep.cases(), **ingest.cases(), **issues.cases()}


def cases() -> dict[str, Call]:
    """Name of a script, and of what it is to do after a blank → the call."""
    much = {f"{name} with {MUCH:,} stored": call for name, call in stored(MUCH, whole=True).items()}
    return {**bare(), **much}
