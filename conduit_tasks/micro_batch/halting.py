"""Ends a process in the middle of a read or a write after a forceful stop (SEMANTICS C16).

A node that waits for a source, a target or Spark hears of a stop at its next call to the broker, which may be late. So
the driver and the executors' workers look beside their work; one that has not ended by itself soon after is ended with
its process. A worker looks itself, because at a Spark Connect server it outlives its driver. Nothing is lost by that:
what was read is not staged, what was sent and not confirmed is sent again, as after a crash. The lease is no longer
renewed and lapses.

What works without Spark (`plan`, acks, redrives, replays) may also have to do in a stopped pipeline: acks go on after
an error, letters that were sent are marked. So there only the calls that may hang are watched (`halting_call`), and
only for a stop by the user's word; the process is ended if its entry point has said how (`ended_by_force`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import BrokerUnavailable, ConduitError
from conduit_tasks.micro_batch.every import every
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker

LOOK = 0.25
"""Seconds between two looks at the pipeline's status."""
GRACE = 1.0
"""Seconds that a node has to end by itself: deliveries confirm what has arrived meanwhile."""
AFTER = 0.25
"""Seconds that a worker leaves to its driver, which ends first and says why."""
KILLED = 1
"""Exit code of a worker that ended itself."""

End = Callable[[str], Any]
"""Ends the process, given the reason."""

_end: ContextVar[tuple[int, End] | None] = ContextVar("conduit_ended_by_force", default=None)
"""Function by which a forceful stop ends the process with this id; a child that it forks has its own end."""


def _by_force(
    pipeline: list[str | None], destination: list[str | None] | None = None, *, by_error: bool = True
) -> bool:
    """Returns whether status and `forced` of the pipeline, or of a destination, say that nothing goes on; `by_error`:
    also if an error degraded the pipeline. A graceful stop ends with the same status, but only once everything is
    delivered and acked; nodes still at work then end in good order."""
    if (by_error and pipeline[0] == "degraded") or (pipeline[0] == "stopped" and pipeline[1] is not None):
        return True
    return destination is not None and destination[0] == "stopped"


class _Stops:
    """Looks at the status of a pipeline, and of its destination if that is the node's."""

    def __init__(self, node: str, grace: float, *, by_error: bool = True) -> None:
        self._node, self._grace, self._by_error, self._since = Node(node), grace, by_error, 0.0

    def over(self, broker: Broker) -> bool:
        """Returns whether a forceful stop was seen `grace` seconds ago, and still stood when Redis last answered."""
        keys = broker.keys
        places = [keys.pipeline, *([keys.destination(self._node.id)] if self._node.kind == "destinations" else [])]
        try:
            found = broker.access.read(*[("HMGET", place, "status", "forced") for place in places])
        except BrokerUnavailable:
            return False
        now = time.monotonic()
        self._since = (self._since or now) if _by_force(*found, by_error=self._by_error) else 0.0
        return bool(self._since) and now - self._since >= self._grace


@contextmanager
def halting(broker: Broker, node: str, end: End, *, by_error: bool = True) -> Iterator[None]:
    """Calls `end` with the reason, in a thread, if the block goes on for `GRACE` seconds after a forceful stop of the
    pipeline, or of its destination `node`. `by_error`: an error that degraded the pipeline is such a stop, too."""
    stops = _Stops(node, GRACE, by_error=by_error)

    def look() -> bool:
        if stops.over(broker):
            end(f"{node} was stopped by force, and did not end by itself within {GRACE:g} s")
            return False
        return True

    with every(f"stops of {node}", LOOK, look):
        yield


@contextmanager
def ended_by_force(end: End) -> Iterator[None]:
    """Lets a forceful stop end this process, by `end`, in the middle of a `halting_call` of the block. For the entry
    point of a process that works on one pipeline and may be killed at any moment: `end` must not return."""
    token = _end.set((os.getpid(), end))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def halting_call(broker: Broker, node: str) -> Iterator[None]:
    """Surrounds a call to a connector, a processor or a handler: `halting`, for a stop of the pipeline by the user's
    word, or of its destination `node`, if this process may be ended (`ended_by_force`)."""
    pid, end = _end.get() or (0, None)
    if end is None or pid != os.getpid():
        yield
        return
    with halting(broker, node, end, by_error=False):
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
    from conduit_tasks.redis_client.connection import connect
    from conduit_tasks.settings import settings

    redis = connect(settings())
    try:
        yield Broker(pipeline, redis)
    finally:
        redis.close()
