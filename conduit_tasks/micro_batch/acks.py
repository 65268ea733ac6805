"""`acks.<source>`: tells the source how far everything is confirmed, and collects what no cursor needs.

Acts on the broker's state alone, so it is right whatever happened to the run before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from conduit_tasks.connectors.capabilities import Queue
from conduit_tasks.connectors.registry import ack_on, comes_again, kept_for, source_class
from conduit_tasks.errors import AckFailed, PipelineStopped, SpoolError, Unavailable
from conduit_tasks.metrics.histogram import observed
from conduit_tasks.micro_batch.checkpoint import Marker, away, proven, try_to_mark
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.halting import halting_call
from conduit_tasks.micro_batch.messages import listened_to, tell
from conduit_tasks.micro_batch.plan import in_flight
from conduit_tasks.micro_batch.receipts import Kept
from conduit_tasks.micro_batch.recorded import collect_ledger
from conduit_tasks.micro_batch.recovery import counting, left_alone
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.spool.checkpoint import Checkpoint
from conduit_tasks.topology import Node

log = logging.getLogger(__name__)

LOOK = 10.0
"""Seconds between two looks at the deadlines of destinations, while a run goes on."""
LEDGER = 60.0
"""Least number of seconds between two collections of the ledger."""
UNFINISHED = 3_600.0
"""Least number of seconds after which an unfinished redelivery of a cleared task no longer holds back collection."""


SLIM_AFTER = 3_600.0
"""Seconds after which a finished micro-batch is kept in a fraction of its size."""


def ack_source(pipeline_id: str, source_id: str, run_id: str) -> dict[str, Any]:
    """Acks one source and collects. Returns {"acked": position or None, "collected": [numbers]}."""
    with opened(pipeline_id, run_id) as context:
        return _ack(context, source_id, _Ledger())


def ack_along(pipeline_id: str, source_id: str, run_id: str, look: Callable[[], None]) -> dict[str, Any]:
    """Acks and collects again and again while the run's destinations deliver, and once after them (DESIGN "One run").
    Returns the same as `ack_source`, with "collected" as a number of micro-batches, and adds "again": reason for a run
    that is to follow at once, or ""; "began": time at which this run began; "left": records that the following run may
    read (None: no limit); "left_out": reason why the source could not be asked the last time ("": it could; None: it
    was not in this run). Calls `look` every `LOOK` seconds."""
    from conduit_tasks.micro_batch.at_work import ACKS, may_read
    from conduit_tasks.micro_batch.draining import Draining

    acked, collected, again, left, left_out = None, 0, "", None, None
    with opened(pipeline_id, run_id) as context:
        broker, draining = context.broker, Draining(context, run_id, 0.0)
        names = [d.id for d in context.pipeline.destinations]
        lowest, over, looked, ledger = -1, False, time.monotonic(), _Ledger()
        course = broker.runs.under_way(run_id)
        while not over:
            since = broker.runs.bell()
            if time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                look()
            before, lowest = lowest, min(broker.deliveries.cursors(names))
            if lowest == before and not (over := draining.over(since)):
                continue
            done = _ack(context, source_id, ledger)
            acked = done["acked"] or acked
            collected += len(done["collected"])
        if course is not None:
            left = may_read(context, course)
            # Told before the last look at the run: a node that ends after it sees that the acks hear it no more.
            if source_id == context.pipeline.sources[0].id:
                broker.runs.tell_at_work(run_id, ACKS, 0)
            if now := broker.runs.under_way(run_id):
                # The run that takes over goes on with what is left.
                again = "" if now.after else now.again or draining.unheard(now)
                left_out = now.left_out.get(source_id)
            elif broker.runs.has_forgotten(course):
                again = "Redis has forgotten this run"
    began = course.began if course else 0.0
    done = {"acked": acked, "collected": collected, "again": again, "began": began}
    return {**done, "left": left, "left_out": left_out}


def _ack(context: Context, source_id: str, ledger: _Ledger) -> dict[str, Any]:
    remember(context)
    acked = None
    if failing := left_alone(context, Node.ack(source_id)):
        log.info("recovering: %s", failing)
    else:
        with counting(context, Node.ack(source_id)), extend_visibility(context, again=False):
            told = tell(context)
            acked = ack(context, source_id, told)
    collected = collect(context)
    if context.in_force():
        ledger.collect(context)
    if context.broker.lifecycle.stored_status() == "stopping":
        in_flight(context)
    return {"acked": acked, "collected": collected}


class _Ledger:
    """Collection of the ledger, at most every `LEDGER` seconds: it lists folders, and acks may follow quickly."""

    def __init__(self) -> None:
        self._last = -LEDGER

    def collect(self, context: Context) -> None:
        """Collects the ledger if it is due."""
        if (now := time.monotonic()) - self._last >= LEDGER:
            self._last = now
            collect_ledger(context)


def ack(context: Context, source_id: str, told: int | None = None) -> dict[str, Any] | None:
    """Gives the source its next acks, if any are due; returns the last position given (C11, C12). `told`: the last
    micro-batch that handlers were told of as a whole; a source whose ack waits for delivery hears of no later one (C7).

    The intent is durable, in Redis and as a mark in the spool, before the source hears of it; after a crash in between
    the same position is given again. A source that cannot be reached, or a mark that cannot be written (AckFailed), is
    a failure like others: retried with a growing delay, then the pipeline is degraded. Any other error of the source's
    `ack` stops the pipeline at once (C8). Raises AckFailed, PipelineStopped, StateLost.
    """
    if not context.in_force():
        log.warning("%s: another version of the file is in force, whose runs ack %s", context.pipeline.id, source_id)
        return None
    source = context.pipeline.source(source_id)
    destinations = [d.id for d in context.pipeline.destinations]
    given = None
    on = ack_on(source)
    through = told if on == "delivered" else None
    with context.broker.leases.acquire(Node.ack(source_id), context.owner, wait=5.0) as lease:
        marker = Marker(context, Node.ack(source_id), lease.token)
        apart = issubclass(source_class(source.plugin), Queue)
        while (
            due := context.broker.acks.begin(source_id, destinations, on, lease.token, apart=apart, through=through)
        ) is not None:
            try:
                # Invariant 1: Redis may forget its last second, the spool does not.
                marker.mark()
            except SpoolError as error:
                raise AckFailed(
                    f"the source {source_id} is told nothing before the spool says so, and that cannot be written: "
                    f"{error}; the same position is given again"
                ) from error
            # The disk may have been slow: a holder that lost its lease meanwhile must not ack less than its successor.
            lease.renew()
            with halting_call(context.broker, Node.ack(source_id)), context.sources.asked(source_id) as connector:
                if isinstance(connector, Queue):
                    connector.receipts = Kept(context.spool)
                began = time.monotonic()
                try:
                    with keeping(lease) if apart else nullcontext():
                        connector.ack(due.position)
                except (Unavailable, OSError) as error:
                    raise AckFailed(
                        f"the source {source_id} cannot be reached for its ack ({type(error).__name__}: {error}); the "
                        "same position is given again"
                    ) from error
                except Exception as error:
                    said = f"the source {source_id} did not take its ack: {type(error).__name__}: {error}"
                    context.broker.lifecycle.fail(Node.ack(source_id), said, type(error).__name__, due.m_to)
                    raise PipelineStopped(
                        f"{said}. Fix it, then `conduit start {context.pipeline.id}`: the same position is given again"
                    ) from error
                took = observed(Node.ack(source_id), "ack", time.monotonic() - began)
            context.broker.acks.commit(source_id, due, lease.token, took)
            given = due.position
        if given is not None:
            try_to_mark(marker)
    return given


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
