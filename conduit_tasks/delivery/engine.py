"""Delivers one micro-batch to one destination: chooses the engine, record-wise or batch-wise, and how soon a delivery
learns that it is stopped or fenced.

`delivery.isolate_poison` delivers a micro-batch whose attempts died (SEMANTICS C10).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from conduit_tasks.connectors.base import BatchDestination, RecordDestination
from conduit_tasks.delivery import batch_wise, record_wise
from conduit_tasks.delivery.committer import Committer
from conduit_tasks.delivery.port import DeliveryPort
from conduit_tasks.delivery.work import DeliveryReport, Work
from conduit_tasks.errors import BrokerUnavailable, ConfigError, Unavailable
from conduit_tasks.settings import settings
from conduit_tasks.topology import Delivery

if TYPE_CHECKING:
    from conduit_tasks.dead_letters.handler import Handler
    from conduit_tasks.delivery.breaker import Breaker
    from conduit_tasks.delivery.handlers import Changes
    from conduit_tasks.ledger.entry import Tally

HEARTBEAT = 0.8
"""Longest time in seconds between two calls to the broker: within it a delivery learns that it is stopped or fenced."""


def deliver(
    work: Work,
    destination: RecordDestination | BatchDestination,
    port: DeliveryPort,
    options: Delivery,
    dlq: Handler | None = None,
    *,
    changes: Changes | None = None,
    tally: Tally | None = None,
    breaker: Breaker | None = None,
) -> DeliveryReport:
    """Delivers the records of `work` that are not confirmed. When it returns, all of them are confirmed in the broker.

    `dlq` takes the nacks that the window accepted; None leaves them to `port.store_dead`. `changes` is told what is
    about to be confirmed (C7), `tally` what was (X5). The destination is closed. Raises Unavailable (the target is down
    and `on-unavailable` is `wait`, or its `breaker` opens), PipelineStopped (the nack window tripped, or a dead letter
    cannot be stored), Fenced, BrokerUnavailable.
    """
    committer = Committer(work, port, dlq, changes=changes, tally=tally, breaker=breaker)
    renew_every = min(settings().lease_ttl / 3, HEARTBEAT)
    try:
        if isinstance(destination, RecordDestination):
            report = record_wise.deliver(destination, options, committer, renew_every)
        elif isinstance(destination, BatchDestination):
            report = batch_wise.deliver(destination, options, committer, renew_every)
        else:
            raise ConfigError(
                f"{work.node}: {type(destination).__name__} is neither a RecordDestination nor a BatchDestination"
            )
    except Unavailable as error:
        # Invariant 4: if this process was suspended, its sends time out before it learns that it is fenced; then its
        # successor decides whether the destination is down.
        with suppress(BrokerUnavailable):
            port.renew()
            if breaker is not None and (said := breaker.ended(error.retry_after)):
                raise Unavailable(f"{error}; {said}", retry_after=error.retry_after, status=error.status) from error
        raise
    if breaker is not None:
        breaker.ended()
    return report
