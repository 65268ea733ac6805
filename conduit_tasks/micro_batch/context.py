"""Context of every step: a pipeline opened, with its broker, spool, sources and dead letters; and the check that one
version makes a micro-batch (invariant 3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.connectors.sources import OpenSources
from conduit_tasks.errors import Outdated
from conduit_tasks.logs import about
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.settings import Settings, settings
from conduit_tasks.topology import Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker, MicroBatch
    from conduit_tasks.dead_letters.handler import Handler
    from conduit_tasks.dead_letters.parking import Parking
    from conduit_tasks.dead_letters.store import DeadLetterStore
    from conduit_tasks.spool.spool import Spool
    from conduit_tasks.topology import DeadLetterQueue, Destination


@dataclass(frozen=True)
class Context:
    """One pipeline, opened. `owner` names the holder in leases: run, host and process."""

    pipeline: Pipeline
    broker: Broker
    spool: Spool
    settings: Settings
    owner: str
    sources: OpenSources

    def in_force(self) -> bool:
        """Returns whether this is the version in force, or none is recorded. An older version does not know which other
        destinations have to confirm what it would ack or collect (invariants 1 and 6)."""
        return self.broker.access.field(self.broker.keys.version, "digest") in (None, self.pipeline.digest())

    def same_version(self, micro_batch: MicroBatch) -> None:
        """Checks invariant 3: one version makes a micro-batch, from its slices to its seal. To be called under the
        lease that the micro-batch is then made with: `restage`, which changes its version, fences that lease. Raises
        Outdated."""
        here = self.pipeline.digest()
        if micro_batch.config != here:
            raise Outdated(
                f"{self.pipeline.file}: pipeline {self.pipeline.id} is version {here} here, and micro-batch "
                f"{micro_batch.number} was planned by version {micro_batch.config}. Where the file has just changed, "
                "the next run reads it again; if this comes again, the file, or the environment that it names, is "
                "another one on the machine that plans"
            )

    def dead_letters(self, queue: DeadLetterQueue, destination: str | None) -> Handler:
        """Returns the handler of the nacks of one destination, or (None) of those before the fan-out."""
        from conduit_tasks.dead_letters.handler import dead_letter_handler

        root = self.settings.path(self.settings.dead_letters)
        return dead_letter_handler(queue, root=root, pipeline=self.pipeline.id, destination=destination)

    def parking(self, destination: Destination) -> Parking | None:
        """Returns the parking of a destination (X4); None if it neither parks keys nor has any parked from before."""
        parked = self.broker.redrives.parked(destination.id)
        if not parked and not destination.delivery.park_keys:
            return None
        from conduit_tasks.dead_letters.parking import Parking

        return Parking(parked, self.parked(destination).store, opens=destination.delivery.park_keys)

    def parked(self, destination: Destination) -> DeadLetterStore:
        """Returns the store of a destination's parked records."""
        from conduit_tasks.dead_letters.store import DeadLetterStore

        root = self.settings.path(self.settings.dead_letters)
        return DeadLetterStore(root, self.pipeline.id, destination.id, parked=True)


def open_broker(pipeline: str, *, initialise: bool = True) -> Broker:
    """Opens the broker of a pipeline and checks its server (T1); `initialise` False makes no state if there is none.

    Raises BrokerUnavailable, NotDurable.
    """
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.redis_client.connection import check_durability, connect

    config = settings()
    redis = connect(config)
    check_durability(redis, config.redis_durability)
    broker = Broker(pipeline, redis, lease_ttl=config.lease_ttl, lease_grace=config.lease_grace)
    if initialise:
        broker.lifecycle.initialise()
    return broker


def open_spool(pipeline: Pipeline) -> Spool:
    """Opens the spool of a pipeline: its own `spool.path`, or the installation's."""
    from conduit_tasks.spool.spool import Spool

    return Spool(settings().path(pipeline.spool_path or settings().spool))


def owner_of(run: str) -> str:
    """Returns the name under which this process holds leases for a run."""
    return f"{run}@{socket.gethostname()}:{os.getpid()}"


@contextmanager
def opened(pipeline: str | Pipeline, run: str) -> Iterator[Context]:
    """Opens a pipeline (if given by its id: with its file as it is now) for one step and registers its destinations'
    cursors; closes its connections afterwards."""
    pipeline = get_pipeline(pipeline) if isinstance(pipeline, str) else pipeline
    with about(pipeline=pipeline.id, run=run), closing(open_broker(pipeline.id)) as broker:
        broker.lifecycle.register([s.id for s in pipeline.sources], [d.id for d in pipeline.destinations])
        with closing(OpenSources(pipeline)) as sources:
            yield Context(pipeline, broker, open_spool(pipeline), settings(), owner_of(run), sources)
