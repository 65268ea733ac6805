"""Ends a node in the middle of a read or a write after a forceful stop (SEMANTICS C16).

A node that waits for a source, a target or Spark hears of a stop at its next call to the broker, which may be late. So
the driver and the executors' workers look beside their work; one that has not ended by itself soon after is ended with
its process. A worker looks itself, because at a Spark Connect server it outlives its driver. Nothing is lost by that:
what was read is not staged, what was sent and not confirmed is sent again, as after a crash. The lease is no longer
renewed and lapses.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.micro_batch.beside import beside
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.micro_batch.context import Context

LOOK = 0.25
"""Seconds between two looks at the pipeline's status."""
GRACE = 1.0
"""Seconds that a node has to end by itself: deliveries confirm what has arrived meanwhile."""
AFTER = 0.25
"""Seconds that a worker leaves to its driver, which ends first and says why."""
KILLED = 1
"""Exit code of a worker that ended itself."""


def _by_force(pipeline: list[str | None], destination: list[str | None] | None = None) -> bool:
    """Returns whether status and `forced` of the pipeline, or of a destination, say that nothing goes on. A graceful
    stop ends with the same status, but only once everything is delivered and acked; nodes still at work then end in
    good order."""
    if pipeline[0] == "degraded" or (pipeline[0] == "stopped" and pipeline[1] is not None):
        return True
    return destination is not None and destination[0] == "stopped"


class _Stops:
    """Looks at the status of a pipeline, and of its destination if that is the node's."""

    def __init__(self, node: str, grace: float) -> None:
        self._node, self._grace, self._since = Node(node), grace, 0.0

    def over(self, broker: Broker) -> bool:
        """Returns whether a forceful stop was seen `grace` seconds ago, and still stood when Redis last answered."""
        keys = broker.keys
        places = [keys.pipeline, *([keys.destination(self._node.id)] if self._node.kind == "destinations" else [])]
        try:
            found = broker.read(*[("HMGET", place, "status", "forced") for place in places])
        except BrokerUnavailable:
            return False
        now = time.monotonic()
        self._since = (self._since or now) if _by_force(*found) else 0.0
        return bool(self._since) and now - self._since >= self._grace


@contextmanager
def halting(context: Context, node: str, end: Callable[[str], None]) -> Iterator[None]:
    """Calls `end` with the reason, in a thread, if the block goes on for `GRACE` seconds after a forceful stop of the
    pipeline, or of its destination `node`."""
    stops = _Stops(node, GRACE)

    def look() -> bool:
        if stops.over(context.broker):
            end(f"{node} was stopped by force, and did not end by itself within {GRACE:g} s")
            return False
        return True

    with beside(f"stops of {node}", LOOK, look):
        yield


@contextmanager
def halting_worker(pipeline: str, node: str, end: Callable[[int], Any] = os._exit) -> Iterator[None]:
    """Ends this process, a worker of an executor, if the block goes on for `GRACE` and `AFTER` seconds after a forceful
    stop. Connects to Redis if the block lasts longer than `LOOK`; while it cannot be reached, the worker goes on."""
    done, stops = threading.Event(), _Stops(node, GRACE + AFTER)

    def look() -> None:
        if done.wait(LOOK):
            return
        with suppress(ConduitError), _connected(pipeline) as broker:
            while not done.wait(LOOK):
                if stops.over(broker) and not done.is_set():
                    end(KILLED)

    # Not waited for at the end: it may be in the middle of a call to a Redis that does not answer.
    threading.Thread(target=look, name=f"stops of {node}", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def _connected(pipeline: str) -> Iterator[Broker]:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.connection import connect
    from conduit_tasks.settings import settings

    redis = connect(settings())
    try:
        yield Broker(pipeline, redis)
    finally:
        redis.close()
