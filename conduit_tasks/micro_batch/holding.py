"""Lease and end of a source that is held (ADR 28): one node alone has its connection, from its first read to its last
ack."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from conduit_tasks.connectors import held
from conduit_tasks.connectors.capabilities import Held
from conduit_tasks.connectors.registry import ack_on, source_class
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping

log = logging.getLogger(__name__)

ACKS = 10.0
"""Seconds that a node which has nothing more to read waits for the acks of what is delivered everywhere."""


@contextmanager
def holding_source(context: Context, source_id: str, wait: float) -> Iterator[None]:
    """Keeps the connection of a source open in the block, if it is one that is held; alone, as a second one might be
    refused by its system, or take the first one's records. Raises LeaseHeld after `wait` seconds."""
    source, broker = context.pipeline.source(source_id), context.broker
    if not issubclass(source_class(source.plugin), Held):
        yield
        return
    with (
        broker.leases.acquire(f"held.{source_id}", context.owner, wait=wait) as lease,
        keeping(lease),
        held.holding(context.pipeline.id, source_id, lambda: broker.positions.acked(source_id)) as scope,
    ):
        yield
        scope.settle(ACKS if ack_on(source) == "stored" or _delivered(context) else 0.0)


def _delivered(context: Context) -> bool:
    """Returns whether everything sealed is delivered everywhere: then its acks are on their way."""
    sealed, *cursors = context.broker.deliveries.cursors([d.id for d in context.pipeline.destinations])
    return all(cursor >= sealed for cursor in cursors)
