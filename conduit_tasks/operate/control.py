"""Starts and stops a pipeline or one destination (SEMANTICS C15, C16, X1), for the command line and others."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.plan import in_flight

POLL, WAKE = 0.5, 5.0
"""Seconds between two looks at what is still in flight, and between two looks at whether a run is under way."""
QUIET = 5.0
"""Seconds without any task at work, longer than between two tasks of a run, after which a stop no longer waits if no
run can be started."""


@dataclass(frozen=True)
class Stop:
    """Result of a stop. `left`: what is still in flight, in words; `overdue`: the deadline was missed, runs go on;
    `alone`: no task is at work on it, and no run can be started."""

    status: str
    left: str = ""
    overdue: bool = False
    alone: bool = False


def start(pipeline_id: str, destination: str | None = None) -> str:
    """Starts a stopped or degraded pipeline, or one destination of an isolated one; returns the pipeline's status.

    Clears the first error, tripped nack windows and rows of failures (C6).
    """
    with opened(pipeline_id, "start") as context:
        if destination:
            context.broker.lifecycle.start_destination(_known(context, destination))
        else:
            context.broker.lifecycle.start()
        return context.broker.lifecycle.status().status


def stop_destination(pipeline_id: str, destination: str) -> str:
    """Stops one destination of an isolated pipeline at once (X1); returns the pipeline's status.

    Its cursor stays: what was sent and not confirmed by then is sent again after the start. The other destinations go
    on, and sources are read, until the lag budget is used up. Raises ConfigError if the destination is unknown or the
    pipeline is not isolated.
    """
    with opened(pipeline_id, "stop") as context:
        context.broker.lifecycle.halt_destination(_alone(context, destination))
        return context.broker.lifecycle.status().status


def _alone(context: Context, destination: str) -> str:
    """Returns the id of a destination that may be stopped alone. Raises ConfigError if it may not."""
    pipeline = context.pipeline
    if not pipeline.isolate:
        raise ConfigError(
            f"pipeline {pipeline.id} is not isolated: without {destination} all of it would stand still. Set `isolate: "
            f"true` and a `lag-budget` in its file, or leave `--destination` out"
        )
    return _known(context, destination)


def _known(context: Context, destination: str) -> str:
    names = [d.id for d in context.pipeline.destinations]
    if destination not in names:
        raise ConfigError(f"pipeline {context.pipeline.id} has no destination {destination}; it has {', '.join(names)}")
    return destination


def force_stop(pipeline_id: str) -> Stop:
    """Stops at once (C16): holders of leases end at their next call to the broker; what is not sealed is dropped."""
    with opened(pipeline_id, "stop") as context:
        return Stop(context.broker.lifecycle.force_stop())


def stop(
    pipeline_id: str, *, deadline: float = 60.0, wait: bool = True, wake: Callable[[str], bool] | None = None
) -> Stop:
    """Stops gracefully (C15): only reading stops, what is in flight is delivered and acked within `deadline` seconds.

    `wake` is called while something is in flight: it makes sure that a run is under way, without which nothing would be
    delivered, and returns False if it cannot. In that case only tasks already at work are waited for.
    """
    with opened(pipeline_id, "stop") as context:
        context.broker.lifecycle.stop(deadline)
        until = time.monotonic() + deadline
        left = in_flight(context)
        woken = at_work = time.monotonic()
        hopeless = bool(left) and wake is not None and not wake(pipeline_id)
        if hopeless:
            wake = None
        while wait and left and time.monotonic() < until:
            if hopeless and context.broker.lifecycle.at_work():
                at_work = time.monotonic()
            elif hopeless and time.monotonic() - at_work >= QUIET:
                return Stop(context.broker.lifecycle.status().status, left, alone=True)
            time.sleep(min(POLL, max(0.0, until - time.monotonic())))
            left = in_flight(context)
            # Repeatedly, as a run may end that skipped a destination which was down for the moment.
            if left and wake is not None and time.monotonic() - woken >= WAKE:
                woken = time.monotonic()
                wake(pipeline_id)
        return Stop(context.broker.lifecycle.status().status, left, bool(wait and left))
