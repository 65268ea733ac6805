"""Steps after a delivery: what a destination's file names is called for each micro-batch that it has confirmed, in
order and at least once (docs/on-delivered.md)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from conduit_tasks.errors import LeaseHeld
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.plan import steps_behind
from conduit_tasks.topology import Node

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivered:
    """A micro-batch that a destination has confirmed: each record that it wanted is delivered there, filtered, or a
    dead letter. `records`: number that it wanted, None if the micro-batch is collected already. `sealed_at`: seconds
    since the epoch."""

    pipeline: str
    destination: str
    micro_batch: int
    records: int | None = None
    sealed_at: float | None = None

    @property
    def id(self) -> str:
        """The same for each call for this micro-batch; another one for a later micro-batch of the same number, which a
        Redis that has forgotten its last moments gives again."""
        sealed = "" if self.sealed_at is None else f".{int(self.sealed_at * 1e6):x}"
        return f"{self.pipeline}.{self.destination}.{self.micro_batch}{sealed}"


def begin(context: Context, destination: str) -> None:
    """Notes where the destination is, if it had no step before: the step is not called for what was delivered then."""
    try:
        with context.broker.leases.acquire(Node(f"steps.{destination}"), context.owner) as lease:
            context.broker.deliveries.told(destination, 0, lease.token)
    except LeaseHeld:
        return  # somebody calls it


def call(context: Context, destination: str, step: Callable[[Delivered], None], *, wait: float = 0.0) -> int:
    """Calls `step` for each micro-batch that was confirmed since the last call, up to the cursor, and returns their
    number. One that the destination wanted nothing of is passed over. Does nothing if somebody else calls it: the
    lease's holder, for which it waits `wait` seconds. Raises what the step raises; the next call begins with the same
    micro-batch."""
    broker, done = context.broker, 0
    if not steps_behind(context, destination):
        return 0
    try:
        with broker.leases.acquire(Node(f"steps.{destination}"), context.owner, wait=wait) as lease, keeping(lease):
            told = broker.deliveries.told(destination, 0, lease.token)
            while (number := told + 1) <= broker.deliveries.get(destination).cursor:
                found = broker.micro_batches.find(number)
                records = None if found is None else found.matched.get(destination, found.total)
                if records != 0:
                    sealed_at = None if found is None else found.sealed_at
                    step(Delivered(context.pipeline.id, destination, number, records, sealed_at))
                    done += 1
                told = broker.deliveries.told(destination, number, lease.token)
    except LeaseHeld as held:
        log.info("%s calls the step of %s", held.owner, destination)
    return done
