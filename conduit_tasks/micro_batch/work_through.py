"""Works through the micro-batches of a run with one node, tries a destination again that is down, and reports how far
the node is.

It is what a node's Spark application does, wherever its rows are worked on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.registry import destination_class, source_class
from conduit_tasks.errors import BrokerUnavailable, Outdated, Unavailable
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.course import Ended
from conduit_tasks.micro_batch.deliver import deliver_destination, left_to_the_next
from conduit_tasks.micro_batch.draining import Draining
from conduit_tasks.micro_batch.every import every
from conduit_tasks.micro_batch.holding import holding_source
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.size import Foresight
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.micro_batch.pass_plan import RunAll

log = logging.getLogger(__name__)

DOWN, DOWN_AT_MOST = 1.0, 30.0
"""Seconds until a destination that is down is tried again in a run that lasts: at first, doubled, and at most."""
TELLS = 5.0
"""Seconds between two reports of a node's progress, if there was any."""


def work_through(
    context: Context,
    node: str,
    run: str,
    run_all: RunAll,
    *,
    limit: float,
    cleared: bool = False,
    progress: Callable[..., None] = lambda **_: None,
    warm: Callable[[], None] = lambda: None,
    begin: Callable[[], None] | None = None,
    parallelism: Callable[[], int] = lambda: 1,
) -> Ended:
    """Works through micro-batches as `sources.<id>`, `processors` or `destinations.<id>` until the run has drained.

    `limit`: seconds that the run lasts at most. `cleared`: the node's task had ended and was cleared. `progress` is
    called for every micro-batch, unless the run lasts, and every few seconds with how far the node is. `warm`: makes
    ready what the first micro-batch needs, if the run lasts and the work is not done in the driver. `begin`: begins
    Spark's start and does not wait for it; called once work is in sight that is not small. None if there is nothing to
    begin. `parallelism`: Spark's default, for destinations that ask for as many tasks. Raises LeaseHeld, Unavailable (a
    destination is down and waits), PipelineStopped, Fenced, SourceError, SpoolError.
    """
    foresight = Foresight(context, Node(node), begin)
    foresight.look()
    with closing(Draining(context, run, limit, foresight=foresight)) as draining:
        return _Node(context, Node(node), run, run_all, draining, cleared, progress, parallelism).through(warm)


@dataclass
class _Node:
    """One node that works through micro-batches; see `work_through`."""

    context: Context
    node: Node
    run: str
    run_all: RunAll
    draining: Draining
    cleared: bool
    progress: Callable[..., None]
    parallelism: Callable[[], int]

    def through(self, warm: Callable[[], None]) -> Ended:
        lasts = self.draining.lasts()
        if lasts:
            if _works_in_spark(self.context, self.node):
                warm()
            self.draining.ready(self.node)
        # A run that lasts may do several micro-batches a second, day after day: progress is told of all together.
        each = _silent if lasts else self.progress
        wait = DOWN
        with _telling(self.context, self.node, self.progress):
            while True:
                began = time.monotonic()
                try:
                    return self._work(each)
                except Unavailable as error:
                    wait = DOWN if time.monotonic() - began > 2 * wait else min(2 * wait, DOWN_AT_MOST)
                    lingers = self.node.kind == "destinations" and self.draining.lingers(self.node, self._pause(wait))
                    if isinstance(lingers, Ended):
                        return left_to_the_next(self.context, self.node.id, self.run, lingers)
                    if not lingers:
                        raise
                    log.warning("%s is tried again, as the run lasts: %s", self.node, error)

    def _pause(self, wait: float) -> float:
        """Returns the seconds until a destination that is down is tried again: `wait`, or what its breaker says."""
        breaker = self.context.pipeline.destination(self.node.id).delivery.breaker
        open = self.context.broker.breakers.waits(self.node.id, breaker)
        return open.left if open else wait

    def _work(self, progress: Callable[..., None]) -> Ended:
        context, draining = self.context, self.draining
        kind, name = self.node.kind, self.node.id
        # A node that finds the lease taken waits one lease time (and the grace), then takes over or ends.
        wait = context.settings.lease_ttl + context.settings.lease_grace + 1
        if kind == "sources":
            with holding_source(context, name, wait):
                return _each(
                    draining, lambda: draining.slices(name), lambda: read_source(context, name, self.run_all, wait)
                )
        if kind == "processors":
            return _each(draining, draining.staged, lambda: process(context, self.run_all, wait))
        return deliver_destination(
            context,
            name,
            self.run_all,
            run=self.run,
            wait=wait,
            cleared=self.cleared,
            progress=progress,
            draining=draining,
            parallelism=self.parallelism,
        )


def _works_in_spark(context: Context, node: Node) -> bool:
    """Returns whether the node's work is done in Spark, not in its driver."""
    if node.kind == "sources":
        return not source_class(context.pipeline.source(node.id).plugin).in_driver
    if node.kind == "destinations":
        return not getattr(destination_class(context.pipeline.destination(node.id).plugin), "in_driver", False)
    return True


def _silent(**_: Any) -> None:
    """Says nothing."""


def _each(draining: Draining, next_one: Callable[[], MicroBatch | Ended], work: Callable[[], str]) -> Ended:
    """Works through micro-batches until none comes any more; `work` does one and returns what was done, in words."""
    done, lasts = 0, draining.lasts()
    while True:
        found = next_one()
        if isinstance(found, Ended):
            return Ended(f"{done} micro-batches; {found.reason}", found.again)
        try:
            log.log(logging.DEBUG if lasts else logging.INFO, "%s", work())
        except Outdated as error:
            found = draining.outdated(error)
            return Ended(f"{done} micro-batches; {found.reason}", found.again)
        draining.context.broker.runs.ring("staged")
        done += 1


@contextmanager
def _telling(context: Context, node: Node, progress: Callable[..., None]) -> Iterator[None]:
    """Reports, while the block runs, how far the node is: records, records a second, micro-batches that wait for it."""
    broker = context.broker

    def so_far() -> tuple[int, int]:
        if node.kind == "destinations":
            state = broker.deliveries.get(node.id)
            return state.counters.get("delivered", 0), broker.micro_batches.latest_sealed() - state.cursor
        return broker.micro_batches.totals().get(f"{node}/read", 0), 0

    try:
        last, at = so_far()[0], time.monotonic()
    except BrokerUnavailable:
        last, at = 0, time.monotonic()

    def tell() -> bool:
        nonlocal last, at
        try:
            records, behind = so_far()
        except BrokerUnavailable:
            return True
        now = time.monotonic()
        if records != last:
            progress(records=records, per_second=round((records - last) / (now - at)), behind=behind)
        last, at = records, now
        return True

    with every(f"progress of {node}", TELLS, tell):
        yield
