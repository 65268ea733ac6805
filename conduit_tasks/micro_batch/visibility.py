"""Keeps messages that a queue handed out hidden from others until their ack, whichever task is at work (SEMANTICS T2).

The worker that received the messages ends long before a slow destination has confirmed them. So every running task of a
pipeline holds, beside its work, what was staged and is not acked: `plan` and `acks` once, the others repeatedly. If no
task runs in time, the messages come again, and are recognized by the receipts of earlier micro-batches.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from conduit_tasks.connectors.base import Position
from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.registry import source_class
from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.errors import ConduitError, LeaseHeld
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import every
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.pipeline.schedule import parse_schedule
from conduit_tasks.topology import Pipeline, Source

log = logging.getLogger(__name__)


def unsettled(context: Context, source: Source) -> tuple[Position, ...]:
    """Returns the ends of the micro-batches whose messages may come again; () for a source that is no queue."""
    of = source_class(source.plugin)
    if not issubclass(of, Queue):
        return ()
    if not of.comes_again:
        return tuple(context.broker.positions.unacked_ends(source.id))
    return tuple(context.broker.positions.ends_since(source.id, context.broker.access.now() - of.comes_again))


@contextmanager
def extend_visibility(context: Context, *, again: bool = True) -> Iterator[None]:
    """Holds what is not acked, of every queue of the pipeline; `again`: also repeatedly, until the work is done."""
    queues = [source.id for source in context.pipeline.sources if issubclass(source_class(source.plugin), Queue)]
    waits = {name: _hold(context, name) for name in queues}
    least = min((seconds for seconds in waits.values() if seconds), default=0.0)
    if not again or not least:
        yield
        return

    def hold() -> bool:
        for name in queues:
            _hold(context, name)
        return True

    with every("queues' messages", least / 2, hold):
        yield


def _hold(context: Context, source_id: str) -> float:
    """Holds once, unless another task did so just now. Returns the seconds until the next hold is due, 0: never."""
    connector = source_connector(context.pipeline, source_id)
    assert isinstance(connector, Queue)
    connector.receipts = Kept(context.spool)
    try:
        if not connector.hold_every:
            return 0.0
        if positions := context.broker.positions.unacked_ends(source_id):
            # The lease is never released: until it lapses, the messages are held long enough.
            ttl = max(0.01, connector.hold_every - context.settings.lease_grace)
            context.broker.leases.acquire(f"hold.{source_id}", context.owner, ttl=ttl)
            with halting_call(context.broker, f"hold.{source_id}"):
                connector.hold(positions, until_next_run(context.pipeline))
    except LeaseHeld:
        pass
    except ConduitError as error:
        log.warning("messages of %s may come again before they are acked: %s", source_id, error)
    finally:
        connector.close()
    return connector.hold_every


def until_next_run(pipeline: Pipeline) -> float:
    """Returns the seconds within which a run that follows this one looks after the messages."""
    return parse_schedule(pipeline.schedule).seconds
