"""Parts of every delivery to a destination, live or again: the lease, the connector, the work's own parts, the ledger.

The callers differ in the records, in their numbers and in the port to the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.connection import made
from conduit_tasks.connectors.registry import destination_class
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.handlers import Changes, Handlers
from conduit_tasks.errors import BrokerUnavailable, ConduitError, Fenced, LeaseHeld, Unavailable
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.recorded import recording, tally_of
from conduit_tasks.processors.chain import Chain
from conduit_tasks.spool.told import Told

if TYPE_CHECKING:
    from conduit_tasks.broker.leases import Lease
    from conduit_tasks.delivery.breaker import Breaker
    from conduit_tasks.delivery.port import DeliveryPort
    from conduit_tasks.delivery.work import DeliveryReport, Work
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.topology import Delivery, Destination

log = logging.getLogger(__name__)


def leased(context: Context, destination: Destination, wait: float = 0.0) -> Lease:
    """Acquires the lease of a destination, waiting so many seconds for its holder to hand over. Raises LeaseHeld, and
    StateLost if Redis has forgotten something of the destination: a confirm would then make a state that neither Redis
    nor the marks in the spool can be rebuilt to (X7)."""
    # Nothing is sent in the last `timeout` seconds of a lease, so that fencing covers sends.
    ttl = context.settings.lease_ttl + destination.delivery.timeout
    lease = context.broker.leases.acquire(destination.node, context.owner, wait=wait, ttl=ttl)
    try:
        # What Redis forgets from here on, the lease is forgotten with.
        Marker(context, destination.node, lease.token).look()
    except ConduitError:
        lease.release()
        raise
    return lease


def connect(pipeline: str, destination: Destination) -> Any:
    """Builds the destination connector from its settings, with the ids of its pipeline and of itself."""
    connector: Any = made(destination_class(destination.plugin), destination.settings)
    connector.pipeline, connector.connector = pipeline, destination.id
    return connector


def send(
    context: Context,
    work: Work,
    connector: Any,
    port: DeliveryPort,
    token: int,
    *,
    run: str | None,
    options: Delivery | None = None,
    handler: Any = None,
    processed: bool = False,
    breaker: Breaker | None = None,
) -> DeliveryReport:
    """Delivers a work, whose `chain`, `state`, `look` and `rested` are filled in here. `token`: of the lease.

    `run`: under which the ledger has it; None: the caller writes the ledger and calls the handlers. `options`: those of
    the destination, unless given. `handler`: as `dlq` of the engine. `breaker`: of the destination. `processed`: the
    records have passed the destination's processors. Raises what the engine raises.
    """
    broker, pipeline = context.broker, context.pipeline
    destination = pipeline.destination(work.destination)
    chain = Chain(destination.processors) if destination.processors and not processed else None
    work = replace(
        work,
        chain=chain,
        state=broker.deliveries.get(destination.id).state,
        look=Marker(context, destination.node, token).look,
        rested=partial(broker.deliveries.rested, destination.id),
    )
    options = options or destination.delivery
    turn = partial(telling, context, destination.id) if work.shard is not None else None
    connector.told = Told(context.spool, pipeline.id, destination.node, turn)
    try:
        if run is None:
            return deliver(work, connector, port, options, handler)
        handlers = Handlers(pipeline, destination.node)
        others = [d.id for d in pipeline.destinations if d is not destination]
        changes = Changes(handlers, work, lambda x: broker.dead_letters.is_dead(x.key, others)) if handlers else None
        tally = tally_of(context, work, run, token)
        with recording(context, tally):
            return deliver(work, connector, port, options, handler, changes=changes, tally=tally, breaker=breaker)
    finally:
        if chain is not None:
            chain.close()


@contextmanager
def telling(context: Context, destination: str) -> Iterator[None]:
    """The block in which one of several tasks tells a connector what it is told once, under a lease of its own: the
    destination's is shared by all of them. Raises Unavailable if another task has it for too long."""
    most = context.settings.connectors_timeout + context.settings.lease_ttl
    try:
        lease = context.broker.leases.acquire(f"told.{destination}", context.owner, wait=2 * most)
    except LeaseHeld as held:
        raise Unavailable(f"the connector of {destination} is told of its life by another task: {held}") from None
    with lease, keeping(lease):
        yield


@contextmanager
def settling(context: Context, id: str, lease: Lease, marker: Marker | None) -> Iterator[None]:
    """Ends what the caller has claimed, once the block, which sends it, ends, well or not: `mark_settled`, `over`."""
    try:
        yield
    except BaseException:
        try:
            mark_settled(context, id, lease.token, marker, over=True)
        except (Fenced, BrokerUnavailable) as error:
            log.warning("what was sent again is marked by the next redrive: %s", error)
        raise
    with keeping(lease):
        mark_settled(context, id, lease.token, marker, over=True)


def mark_settled(context: Context, id: str, token: int, marker: Marker | None, *, over: bool = False) -> None:
    """Marks in the store the letters of a destination ("": from before the fan-out) that were settled, and lets the
    broker forget them. `over`: claims that were not settled are given back.

    Redis may forget that they were sent: `marker` says so first, as a state rebuilt from an older mark would cut away
    what the store calls redriven (X7).
    """
    settled = context.broker.redrives.settled(id)
    if settled:
        if marker is not None:
            marker.mark()
        root = context.settings.path(context.settings.dead_letters)
        Marks(root, context.pipeline.id).write(id or BEFORE_FAN_OUT, settled)
    context.broker.redrives.mark(id, token, [s.key for s in settled], over=over)
