"""Removes micro-batches that nobody needs any more: delivered, acked and past their retention (invariant 6)."""

from __future__ import annotations

import logging

from conduit_tasks.connectors.registry import comes_again, kept_for
from conduit_tasks.micro_batch.checkpoint import away, proven
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.messages import listened_to
from conduit_tasks.spool.checkpoint import Checkpoint

log = logging.getLogger(__name__)

UNFINISHED = 3_600.0
"""Least number of seconds after which an unfinished redelivery of a cleared task no longer holds back collection."""
SLIM_AFTER = 60.0
"""Seconds after which a finished micro-batch is kept in a fraction of its size."""


def collect(context: Context) -> list[int]:
    """Removes micro-batches below the lowest cursor that are acked and past their retention (invariant 6), as far as
    the marks in the spool confirm it: what Redis forgets of its last moments is then known without it (X7). Returns
    their numbers."""
    if not context.in_force():
        return []
    sources = [s.id for s in context.pipeline.sources]
    destinations = [d.id for d in context.pipeline.destinations]
    done: list[int] = []
    for name in destinations:
        after = max(context.pipeline.spool_retention, UNFINISHED)
        if (left := context.broker.redeliveries.lapse(name, after)) is not None:
            log.warning(
                "%s: sending again what run %s had delivered to %s was left unfinished for %.0f hours and is given up; "
                "%d micro-batch(es) were not sent whole. To send them, replay their interval: `conduit replay %s`",
                *(context.pipeline.id, left[0], name, after / 3600, left[1], context.pipeline.id),
            )
    due = context.broker.collection.due(sources, destinations, kept_for(context.pipeline))
    if due and listened_to(context):
        told = context.broker.acks.told()
        due = [number for number in due if number <= told]
    due = due[: proven(context, due)]
    if due and away(context):
        Checkpoint(context.spool, context.pipeline.id).collecting(due[-1])
    for number in due:
        context.broker.collection.begin(number)
        context.spool.collect(context.pipeline.id, number)
        context.broker.collection.end(number)
        done.append(number)
    context.broker.collection.slim(sources, destinations, max(SLIM_AFTER, comes_again(context.pipeline)))
    return done
