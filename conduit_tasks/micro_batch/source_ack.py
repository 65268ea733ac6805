"""The next ack of a source, as far as `broker/acks.py` finds it confirmed: noted before the source hears of it, tried
again, or a stop (SEMANTICS C11, C12)."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import Any

from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.registry import ack_on, source_class
from conduit_tasks.errors import AckFailed, PipelineStopped, SpoolError, Unavailable
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.micro_batch.checkpoint import Marker, try_to_mark
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.topology import Node

log = logging.getLogger(__name__)


def ack(context: Context, source_id: str, told: int | None = None) -> dict[str, Any] | None:
    """Gives the source its next acks, if any are due; returns the last position given (C11, C12). `told`: the last
    micro-batch that handlers were told of as a whole; a source whose ack waits for delivery hears of no later one (C7).

    The intent is durable, in Redis and as a mark in the spool, before the source hears of it; after a crash in between
    the same position is given again. A source that cannot be reached, or a mark that cannot be written (AckFailed), is
    a failure like others: retried with a growing delay, then the pipeline is degraded. Any other error of the source's
    `ack` stops the pipeline at once (C8). Raises AckFailed, PipelineStopped, StateLost.
    """
    if not context.in_force():
        log.warning("%s: another version of the file is in force, whose runs ack %s", context.pipeline.id, source_id)
        return None
    source = context.pipeline.source(source_id)
    destinations = [d.id for d in context.pipeline.destinations]
    given = None
    on = ack_on(source)
    through = told if on == "delivered" else None
    with context.broker.leases.acquire(Node.ack(source_id), context.owner, wait=5.0) as lease:
        marker = Marker(context, Node.ack(source_id), lease.token)
        apart = issubclass(source_class(source.plugin), Queue)
        while (
            due := context.broker.acks.begin(source_id, destinations, on, lease.token, apart=apart, through=through)
        ) is not None:
            try:
                # Invariant 1: Redis may forget its last second, the spool does not.
                marker.mark()
            except SpoolError as error:
                raise AckFailed(
                    f"the source {source_id} is told nothing before the spool says so, and that cannot be written: "
                    f"{error}; the same position is given again"
                ) from error
            # The disk may have been slow: a holder that lost its lease meanwhile must not ack less than its successor.
            lease.renew()
            with halting_call(context.broker, Node.ack(source_id)), context.sources.asked(source_id) as connector:
                if isinstance(connector, Queue):
                    connector.receipts = Kept(context.spool)
                began = time.monotonic()
                try:
                    with keeping(lease) if apart else nullcontext():
                        connector.ack(due.position)
                except (Unavailable, OSError) as error:
                    raise AckFailed(
                        f"the source {source_id} cannot be reached for its ack ({type(error).__name__}: {error}); the "
                        "same position is given again"
                    ) from error
                except Exception as error:
                    said = f"the source {source_id} did not take its ack: {type(error).__name__}: {error}"
                    context.broker.lifecycle.fail(Node.ack(source_id), said, type(error).__name__, due.m_to)
                    raise PipelineStopped(
                        f"{said}. Fix it, then `conduit start {context.pipeline.id}`: the same position is given again"
                    ) from error
                took = observed(Node.ack(source_id), "ack", time.monotonic() - began)
            context.broker.acks.commit(source_id, due, lease.token, took)
            given = due.position
        if given is not None:
            try_to_mark(marker)
    return given
