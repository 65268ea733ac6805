"""The port of a task that delivers one shard of a divided micro-batch: numbers in the micro-batch become those in the
shard, votes enter the shard's own window (ADR 27)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from conduit_tasks.delivery.broker_port import BrokerPort
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.record.counts import Counts
from conduit_tasks.record.dead_letter import DeadLetter

if TYPE_CHECKING:
    from conduit_tasks.delivery.shard import Shard


class ShardPort(BrokerPort):
    """See DeliveryPort. Engines speak of the records' numbers in the micro-batch, the broker hears of their numbers in
    the shard. Votes enter the shard's own window, in the order of its records."""

    def __init__(self, *parts: Any, within: Shard, **more: Any) -> None:
        super().__init__(*parts, **more, shard=within.number)
        self._within = within

    def confirm(
        self,
        ranges: Sequence[tuple[int, int]],
        counts: Counts,
        *,
        state: dict[str, Any] | None = None,
        dead: Sequence[DeadLetter] = (),
    ) -> None:
        """See DeliveryPort; one command. Raises InvariantBroken if the destination has a state: it is one for all."""
        if state is not None:
            raise InvariantBroken(f"{self._destination.node} keeps a state, so several tasks cannot deliver to it")
        numbers = self._within.numbers(ranges)
        if not numbers:
            # Nothing but seqs of other shards.
            self.renew()
            return
        began = time.monotonic()
        self._broker.shards.confirm(
            self._destination.id,
            self._m,
            self._lease.token,
            self._within.number,
            numbers,
            counts,
            total=self._within.total,
            dead=dead,
            run=self._run,
            retention=self._retention,
            observed=self._latencies.observed(ranges) if self._latencies is not None else None,
        )
        self._lease.renewed(began)
