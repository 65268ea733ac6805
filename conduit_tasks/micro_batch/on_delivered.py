"""Steps after a delivery: what a destination's file names is called for each micro-batch that it has confirmed, in
order and at least once (docs/on-delivered.md)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from conduit_tasks.errors import LeaseHeld
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.plan import steps_behind
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivered:
    """A micro-batch that a destination has confirmed: each record that it wanted is delivered there, filtered, or a
    dead letter. `records`: number that it wanted, None if the micro-batch is collected already. `sealed_at`: seconds
    since the epoch. `manifest`: the name of its manifest, which no two micro-batches of a number share."""

    pipeline: str
    destination: str
    micro_batch: int
    records: int | None = None
    sealed_at: float | None = None
    manifest: str = ""

    @property
    def id(self) -> str:
        """The same for each call for this micro-batch; another one for a later micro-batch of the same number, which a
        Redis that has forgotten its last moments gives again. It holds the token of the seal; the time of it is put
        right if the clock was ahead."""
        token = "".join(re.findall(r"manifest-(\d+)\.json$", self.manifest))
        return f"{self.pipeline}.{self.destination}.{self.micro_batch}{f'.{int(token):x}' if token else ''}"

    @property
    def told(self) -> dict[str, Any]:
        """Message for a DAG or an event."""
        names = ("pipeline", "destination", "micro_batch", "records", "sealed_at")
        return {name: getattr(self, name) for name in names}


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
                if (delivered := _wanted(broker, destination, number)) is not None:
                    step(delivered)
                    done += 1
                told = broker.deliveries.told(destination, number, lease.token)
    except LeaseHeld as held:
        log.info("%s calls the step of %s", held.owner, destination)
    return done


@dataclass
class Pending:
    """Micro-batches whose events are due, in order, while the step's lease is held. `more`: whether there are more."""

    broker: Broker
    destination: str
    token: int
    delivered: list[Delivered] = field(default_factory=list)
    more: bool = False

    def told_through(self, number: int) -> None:
        """Stores that the events of the micro-batches up to `number` are there. Raises Fenced."""
        self.broker.deliveries.told(self.destination, number, self.token)
        self.delivered = [each for each in self.delivered if each.micro_batch > number]


@contextmanager
def pending(broker: Broker, destination: str, owner: str, most: int, *, wait: float) -> Iterator[Pending]:
    """Holds the step's lease while the block runs; gives the micro-batches that were confirmed since the last word, at
    most `most` of them. Waits `wait` seconds for the lease. Raises LeaseHeld."""
    lease = broker.leases.acquire(Node(f"steps.{destination}"), owner, wait=wait)
    with lease, keeping(lease):
        told = broker.deliveries.told(destination, 0, lease.token)
        found = Pending(broker, destination, lease.token)
        for number in range(told + 1, broker.deliveries.get(destination).cursor + 1):
            if len(found.delivered) == most:
                found.more = True
                break
            if (delivered := _wanted(broker, destination, number)) is not None:
                found.delivered.append(delivered)
            elif not found.delivered:
                found.told_through(number)
        yield found


def _wanted(broker: Broker, destination: str, number: int) -> Delivered | None:
    """Returns a confirmed micro-batch; None if the destination wanted nothing of it."""
    found = broker.micro_batches.find(number)
    records = None if found is None else found.matched.get(destination, found.total)
    if records == 0:
        return None
    if found is None:
        return Delivered(broker.pipeline, destination, number)
    return Delivered(broker.pipeline, destination, number, records, found.sealed_at, found.manifest)
