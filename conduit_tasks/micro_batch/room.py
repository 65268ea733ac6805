"""Room for new records: the limits of a micro-batch, within the lag budget and Redis' memory (C13, invariant 7)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from conduit_tasks.micro_batch.context import Context
from conduit_tasks.topology import Limits

if TYPE_CHECKING:
    from conduit_tasks.broker.state import Backlog
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)


def room_for(context: Context, overrides: Mapping[str, int] | None) -> Limits | None:
    """Returns how much may be read now (C13, invariant 7); None: the lag budget or Redis' memory is used up."""
    pipeline = context.pipeline
    if why := full(context):
        log.warning("%s: %s", pipeline.id, why)
        return None
    limits = pipeline.micro_batch
    records, size = limits.records, limits.bytes
    if overrides:
        records = _least(records, overrides.get("max-records"))
        size = _least(size, overrides.get("max-bytes"))
    backlog = context.broker.deliveries.backlog([d.id for d in pipeline.destinations])
    return room_left(pipeline, backlog, context.broker.access.now(), Limits(records, size))


def room_left(pipeline: Pipeline, backlog: Backlog, now: float, limits: Limits) -> Limits | None:
    """Returns what of these limits the lag budget lets be read (C13); None: it is used up. `now`: server's clock."""
    records, size, budget = limits.records, limits.bytes, pipeline.lag_budget
    if budget is None:
        return None if backlog.micro_batches else Limits(records, size)
    if budget.age is not None and backlog.age(now) > budget.age:
        return None
    if budget.records is not None:
        left = budget.records - backlog.records
        records = left if records is None else min(records, left)
    if budget.bytes is not None:
        left = budget.bytes - backlog.bytes
        size = left if size is None else min(size, left)
    if (records is not None and records <= 0) or (size is not None and size <= 0):
        return None
    return Limits(records, size)


def _least(a: int | None, b: int | None) -> int | None:
    return min((n for n in (a, b) if n), default=None)


def full(context: Context) -> str:
    """Returns why nothing may be read whatever the lag budget is: Redis has too little memory left; or "".

    Micro-batches under way take memory before they free any, so reading stops while some memory is left.
    """
    used, share = context.broker.access.used(), context.settings.redis_share
    if used < share:
        return ""
    return (
        f"Redis uses {used:.0%} of its maxmemory: from {share:.0%} on (CONDUIT_REDIS_SHARE) nothing new is read. Raise "
        "maxmemory, or keep less: a shorter `spool.retention`, dead letters redriven or purged"
    )
