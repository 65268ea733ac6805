"""Removes micro-batches that are delivered, acked, past their retention and proven by marks (invariant 6); for how long
a step or a redelivery holds them back."""

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
STEPS = 7 * 86_400.0
"""Seconds past its retention for which a micro-batch waits for the steps after its delivery."""
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
    due = _steps_called(context, due)
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


def _steps_called(context: Context, due: list[int]) -> list[int]:
    """Returns those of the micro-batches for which each destination's step was called: it is told what only they know,
    the number of their records and their id. A step that fails for days holds back none for ever, which is logged."""
    if not due:
        return due
    steps = [d.id for d in context.pipeline.destinations if d.on_delivered]
    asked = [("HGET", context.broker.keys.destination(name), "told") for name in steps]
    told = dict(zip(steps, context.broker.access.read(*asked), strict=True))
    behind = {name: int(m) for name, m in told.items() if m is not None and int(m) < due[-1]}
    if not behind:
        return due
    first = min(behind.values()) + 1
    sources, destinations = [s.id for s in context.pipeline.sources], [d.id for d in context.pipeline.destinations]
    late = context.broker.collection.due(sources, destinations, kept_for(context.pipeline) + STEPS)
    if late and late[-1] >= first:
        log.warning(
            "%s: micro-batches %d to %d are removed from the spool although the step of %s was not called for them for "
            "%.0f days: it gets them without `records`, under another id. Its error is in the log of its task",
            *(context.pipeline.id, max(first, late[0]), late[-1], ", ".join(sorted(behind)), STEPS / 86_400),
        )
    return [number for number in due if number < first or number in set(late)]
