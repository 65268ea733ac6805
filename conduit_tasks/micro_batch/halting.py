"""Ends a node in the middle of a read or a write after a forceful stop (SEMANTICS C16).

A node that waits for a source, a target or Spark hears of a stop at its next call to the broker, which may be late. So
the driver looks beside its work; a node that has not ended by itself soon after is ended with its process. Nothing is
lost by that: what was read is not staged, what was sent and not confirmed is sent again, as after a crash. The lease is
no longer renewed and lapses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.micro_batch.beside import beside
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context

LOOK = 0.4
"""Seconds between two looks at the pipeline's status."""
GRACE = 1.0
"""Seconds that a node has to end by itself: deliveries confirm what has arrived meanwhile."""


def _by_force(pipeline: list[str | None], destination: list[str | None] | None = None) -> bool:
    """Returns whether status and `forced` of the pipeline, or of a destination, say that nothing goes on. A graceful
    stop ends with the same status, but only once everything is delivered and acked; nodes still at work then end in
    good order."""
    if pipeline[0] == "degraded" or (pipeline[0] == "stopped" and pipeline[1] is not None):
        return True
    return destination is not None and destination[0] == "stopped"


@contextmanager
def halting(context: Context, node: str, end: Callable[[str], None]) -> Iterator[None]:
    """Calls `end` with the reason, in a thread, if the block goes on for `GRACE` seconds after a forceful stop of the
    pipeline, or of its destination `node`."""
    broker, keys = context.broker, context.broker.keys
    places = [keys.pipeline, *([keys.destination(Node(node).id)] if Node(node).kind == "destinations" else [])]
    since: list[float] = []

    def look() -> bool:
        try:
            found = broker.read(*[("HMGET", place, "status", "forced") for place in places])
        except BrokerUnavailable:
            return True
        if not _by_force(*found):
            since.clear()
        elif not since:
            since.append(time.monotonic())
        elif time.monotonic() - since[0] >= GRACE:
            end(f"{node} was stopped by force, and did not end by itself within {GRACE:g} s")
            return False
        return True

    with beside(f"stops of {node}", LOOK, look):
        yield
