"""The broker of one pipeline: puts together the parts of its state in Redis, each from the module of its name; every
read and every change goes through one of them.

It is composed of parts with one idea each. State size follows open micro-batches × destinations + exceptions, not the
number of events.
"""

from __future__ import annotations

from conduit_tasks.broker.access import Access
from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.alerts import Alerts
from conduit_tasks.broker.breakers import Breakers
from conduit_tasks.broker.collection import Collection
from conduit_tasks.broker.dead_letters import DeadLetters
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.failures import Failures
from conduit_tasks.broker.issues import Issues
from conduit_tasks.broker.leases import Leases
from conduit_tasks.broker.lifecycle import Lifecycle
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.broker.outages import Outages
from conduit_tasks.broker.positions import Positions
from conduit_tasks.broker.redeliveries import Redeliveries
from conduit_tasks.broker.redrive import Redrives
from conduit_tasks.broker.replay import Replays
from conduit_tasks.broker.runs import Runs
from conduit_tasks.broker.sending import Sending
from conduit_tasks.broker.series import Series
from conduit_tasks.broker.shards import Shards
from conduit_tasks.broker.state import MicroBatch
from conduit_tasks.broker.versions import Versions
from conduit_tasks.redis_client.connection import Client

__all__ = ["Broker", "MicroBatch"]


class Broker:
    """All parts of one pipeline's state. `lease_ttl` and `lease_grace` in seconds."""

    def __init__(self, pipeline: str, redis: Client, *, lease_ttl: float = 15.0, lease_grace: float = 1.0) -> None:
        self._compose(Access(pipeline, redis, lease_ttl=lease_ttl, lease_grace=lease_grace))

    @classmethod
    def over(cls, access: Access) -> Broker:
        """Returns the broker whose parts share this access."""
        broker = cls.__new__(cls)
        broker._compose(access)
        return broker

    def _compose(self, access: Access) -> None:
        self.access = access
        """Reads of keys, and runs of scripts, for those who know the keys."""
        self.pipeline, self.redis, self.keys = access.pipeline, access.redis, access.keys
        self.leases = Leases(access)
        """The right to change a node's state."""
        self.failures = Failures(access)
        """Failures of nodes that are tried again."""
        self.micro_batches = MicroBatches(access)
        """Open, stage, seal."""
        self.positions = Positions(access, self.micro_batches)
        """Positions of the sources: how far each is planned and acked."""
        self.lifecycle = Lifecycle(access, self.failures, self.leases, self.micro_batches, self.positions)
        """Registration, status, stop and start."""
        self.dead_letters = DeadLetters(access)
        """The index of dead letters."""
        self.deliveries = Deliveries(access, self.dead_letters, self.leases)
        """Cursors, confirms, votes."""
        self.breakers = Breakers(access)
        """Failures of destinations in a row, and until when nothing is sent to them."""
        self.outages = Outages(access)
        """Why destinations do not take what they are sent."""
        self.shards = Shards(access, self.dead_letters)
        """Divided micro-batches: one destination, several tasks."""
        self.redeliveries = Redeliveries(access)
        """Ranges that each run confirmed, sent again."""
        self.sending = Sending(access)
        """State that is stored before a send."""
        self.redrives = Redrives(access, self.dead_letters)
        """Dead letters sent again; parked keys."""
        self.replays = Replays(access, self.dead_letters, self.redrives)
        """An interval sent again."""
        self.acks = Acks(access, self.deliveries)
        """Acks to the sources."""
        self.collection = Collection(access, self.deliveries)
        """Removal of micro-batches that nobody needs."""
        self.versions = Versions(access)
        """Version of the pipeline file in force; destinations renamed or forgotten."""
        self.runs = Runs(access)
        """Nodes at work in a run, and the bell."""
        self.issues = Issues(access)
        """Failed tasks of one cause; what people decided about failures of one cause, and who was told."""
        self.series = Series(access)
        """Recent figures of the pipeline and its nodes, in buckets of time."""
        self.alerts = Alerts(access)
        """Alerts about late destinations, each sent once."""

    def close(self) -> None:
        """Closes the connections."""
        self.access.close()
