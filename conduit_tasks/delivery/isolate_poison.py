"""Isolates poison: delivers a micro-batch whose attempts died without progress (SEMANTICS C10, B7).

A range of seqs is delivered in a child process. If the child dies, the broker is asked which seqs it confirmed, and the
rest is halved, until one record is left that kills its worker alone: this record is dead-lettered without being read,
with the class `killed its worker`. A single record gets a second attempt, because a process may also die for other
reasons.

The caller must hold no connection that a child would share: `deliver` opens the connections that it needs itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.delivery.work import DeliveryReport, add

log = logging.getLogger(__name__)

Span = tuple[int, int]


def deliver_isolated(
    deliver: Callable[[Span, Sequence[int]], DeliveryReport],
    confirmed: Callable[[], Sequence[Span]],
    span: Span,
    *,
    forks: bool = True,
) -> DeliveryReport:
    """Delivers `span` (both ends included), the lower half always before the upper one (C9).

    `deliver(span, culprits)` runs in a child: it delivers the seqs of the span that are not confirmed, and dead-letters
    `culprits` without reading them; its exceptions are raised here. `forks`: see `in_child`. `confirmed()` asks the
    broker for the confirmed ranges. The report counts only what children confirmed that did not die.
    """
    report = DeliveryReport()
    todo: list[Span] = [span]
    suspect: int | None = None
    while todo:
        first, last = todo.pop()
        open_ranges = RangeSet(((first, last),)).subtract(RangeSet.of(confirmed()))
        if not open_ranges:
            continue
        first, last = open_ranges.ranges[0][0], open_ranges.ranges[-1][1]
        try:
            report = _sum(report, in_child(deliver, (first, last), (), forks=forks))
            continue
        except ChildDied as died:
            log.warning("delivering records %d to %d ended the worker process: %s", first, last, died.how)
        left = RangeSet(((first, last),)).subtract(RangeSet.of(confirmed()))
        if left.count > 1:
            todo += _halves(left)
        elif left and suspect == left.ranges[0][0]:
            report = _sum(report, in_child(deliver, left.ranges[0], (suspect,), forks=forks))
        elif left:
            suspect = left.ranges[0][0]
            todo.append(left.ranges[0])
    return report


def _halves(left: RangeSet) -> list[Span]:
    """Returns both halves, the lower one last, because the last one is taken first. Seqs confirmed meanwhile are
    skipped."""
    first, last = left.ranges[0][0], left.ranges[-1][1]
    middle = (first + last) // 2
    return [(middle + 1, last), (first, middle)]


def _sum(a: DeliveryReport, b: DeliveryReport) -> DeliveryReport:
    return DeliveryReport(add(a.counts, b.counts), a.flushes + b.flushes, a.seconds + b.seconds)
