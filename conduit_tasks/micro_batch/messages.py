"""Tells handlers which messages are acked as a whole, once every destination has finished their micro-batch (C4, C7).

The number of the last micro-batch told is stored beside the acks of the sources, and in the same order: first the
intent, then the handlers, then the commit. A source whose ack waits for delivery hears of it after the handlers;
nothing is collected before they have been told. After a crash they are told of the same micro-batches again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from conduit_tasks.broker.acks import MESSAGES
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.handlers import BLOCK, ERROR_CLASS, HandlerFailed, Handlers, StateChange
from conduit_tasks.errors import LeaseHeld, PipelineStopped
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.seal import origins_of
from conduit_tasks.record.schema import to_records
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.manifest import SealedManifest

NODE = "pipeline"
"""Node name in a state change that belongs to no single node."""


def listened_to(context: Context) -> bool:
    """Returns whether any handler is to be told of acked messages."""
    return Handlers(context.pipeline).wants("acked", "message")


def tell(context: Context) -> int | None:
    """Tells the handlers what is due. Returns the last micro-batch they were told of, None if no handler listens.

    Raises PipelineStopped if a handler raises.
    """
    handlers = Handlers(context.pipeline)
    if not handlers.wants("acked", "message"):
        return None
    broker, destinations = context.broker, [d.id for d in context.pipeline.destinations]
    if context.in_force() and broker.acks.due(MESSAGES, destinations, "delivered"):
        try:
            with broker.leases.acquire(Node.ack(MESSAGES), context.owner, wait=5.0) as lease, keeping(lease):
                while (due := broker.acks.begin(MESSAGES, destinations, "delivered", lease.token)) is not None:
                    with halting_call(broker, Node.ack(MESSAGES)):
                        _tell(context, handlers, range(due.m_from, due.m_to + 1))
                    broker.acks.commit(MESSAGES, due, lease.token)
        except LeaseHeld:
            # The ack of another source tells them.
            pass
    return broker.acks.told()


def _tell(context: Context, handlers: Handlers, numbers: range) -> None:
    from conduit_tasks.ledger.messages import Overall

    pipeline, spool = context.pipeline, context.spool
    root = context.settings.path(context.settings.dead_letters)
    overall = Overall(pipeline, spool, root, nacks=_indexed(context, numbers))
    for number in numbers:
        path = spool.sealed(pipeline.id, number)
        if path is None:
            # Collected before anybody listened.
            continue
        try:
            handlers.call(_acked(context, spool.read_sealed(path), overall.of(number).nacked), "message")
        except HandlerFailed as error:
            context.broker.lifecycle.fail(Node.ack(MESSAGES), str(error), ERROR_CLASS, number)
            raise PipelineStopped(str(error)) from error


def _indexed(context: Context, numbers: range) -> dict[int, set[int]]:
    """Returns the nacks that the broker's index has in these micro-batches, also of records that were dropped."""
    out: dict[int, set[int]] = {}
    for destination in ["", *(d.id for d in context.pipeline.destinations)]:
        for entry in context.broker.dead_letters.entries(destination):
            if entry.micro_batch in numbers and not entry.epoch:
                out.setdefault(entry.micro_batch, set()).add(entry.seq)
    return out


def _acked(context: Context, manifest: SealedManifest, nacks: RangeSet) -> Iterator[StateChange]:
    """Yields every record that is not nacked, in order; then the records that were filtered before the fan-out."""
    pipeline, index, number = context.pipeline.id, manifest.index_of(), manifest.micro_batch
    origins = origins_of(pipeline, manifest.slices)
    gone = np.ones(manifest.total, bool)
    for first, last in nacks:
        gone[first : last + 1] = False
    for file in manifest.files:
        for batch in context.spool.read(file):
            seqs = manifest.seqs(batch)
            gone[seqs] = False
            for at in range(0, len(seqs), BLOCK):
                for seq, record in zip(seqs[at : at + BLOCK].tolist(), to_records(batch.slice(at, BLOCK), origins)):
                    if seq not in nacks:
                        source = record.origin.connector
                        yield StateChange("acked", pipeline, NODE, number, seq, index(seq), record, source=source)
    for seq in np.flatnonzero(gone).tolist():
        source = manifest.source_of(seq)
        yield StateChange("acked", pipeline, NODE, number, seq, index(seq), None, source=source)
