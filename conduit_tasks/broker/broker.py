"""The broker of one pipeline: every read and every change of its state in Redis.

The parts are `lifecycle` (schema, status, stops), `micro_batches` (open, stage, seal), `leases`, `delivery` (cursors,
confirms, votes), `sending` (what is stored before a send), `redrive` (dead letters sent again, parked keys), `replay`
(an interval sent again), `acks` (sources, collection), `versions` (of the pipeline file), `lateness` (alerts) and
`under_way` (nodes at work in a run). State size follows open micro-batches × destinations + exceptions, not the number
of events.
"""

from __future__ import annotations

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.lateness import Lateness
from conduit_tasks.broker.lifecycle import Lifecycle
from conduit_tasks.broker.replay import Replays
from conduit_tasks.broker.sending import Sending
from conduit_tasks.broker.state import MicroBatch
from conduit_tasks.broker.under_way import Runs
from conduit_tasks.broker.versions import Versions

__all__ = ["Broker", "MicroBatch"]


class Broker(Lifecycle, Acks, Sending, Replays, Versions, Lateness, Runs):
    """All operations on one pipeline's state; see the module. `lease_ttl` and `lease_grace` in seconds."""

    def at_work(self) -> list[str]:
        """Returns the nodes whose lease is held."""
        return [node for node in self.nodes() if self.held_for(node)]
