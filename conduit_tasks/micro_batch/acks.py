"""`acks.<source>`: acks and collects again and again while a run's destinations deliver, and says at the end whether
another run is to follow at once.

Acts on the broker's state alone, so it is right whatever happened to the run before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from conduit_tasks.micro_batch.collection import collect
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.messages import tell
from conduit_tasks.micro_batch.plan import in_flight
from conduit_tasks.micro_batch.recorded import collect_ledger
from conduit_tasks.micro_batch.recovery import counting, left_alone
from conduit_tasks.micro_batch.source_ack import ack
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.topology import Node

log = logging.getLogger(__name__)

LOOK = 10.0
"""Seconds between two looks at the deadlines of destinations, while a run goes on."""
TELLS = 5.0
"""Seconds between two reports that the acks are at work; each holds for three times as long."""
LEDGER = 60.0
"""Least number of seconds between two collections of the ledger."""


def ack_source(pipeline_id: str, source_id: str, run_id: str) -> dict[str, Any]:
    """Acks one source and collects. Returns {"acked": position or None, "collected": [numbers]}."""
    with opened(pipeline_id, run_id) as context:
        return _ack(context, source_id, _Ledger())


def ack_along(pipeline_id: str, source_id: str, run_id: str, look: Callable[[], None]) -> dict[str, Any]:
    """Acks and collects again and again while the run's destinations deliver, and once after them
    (docs/architecture.md, "One run"). Returns the same as `ack_source`, with "collected" as a number of micro-batches,
    and adds "again": reason for a run that is to follow at once, or ""; "began": time at which this run began; "left":
    records that the following run may read (None: no limit); "left_out": reason why the source could not be asked the
    last time ("": it could; None: it was not in this run). Calls `look` every `LOOK` seconds."""
    from conduit_tasks.micro_batch.at_work import ACKS, may_read
    from conduit_tasks.micro_batch.draining import Draining

    acked, collected, again, left, left_out = None, 0, "", None, None
    with opened(pipeline_id, run_id) as context:
        broker, draining = context.broker, Draining(context, run_id, 0.0)
        names = [d.id for d in context.pipeline.destinations]
        lowest, over, looked, ledger = -1, False, time.monotonic(), _Ledger()
        course = broker.runs.under_way(run_id)
        at_work = -TELLS
        while not over:
            since = broker.runs.bell()
            if time.monotonic() - at_work > TELLS:
                at_work = time.monotonic()
                broker.runs.tell_at_work(run_id, Node.ack(source_id), 3 * TELLS)
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
