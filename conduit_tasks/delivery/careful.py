"""The careful way of delivering, for a micro-batch whose attempts died without progress (SEMANTICS C10, B7).

A range of seqs is delivered in a child process. Where the child dies, what it confirmed is asked from the broker, and
the rest is halved, until one record is left that kills its worker alone: that one is dead-lettered unseen, with the
class `killed its worker`. A single record is given a second chance, because a process also dies of others' faults.

The caller must hold no connection that a child would share: what `deliver` needs is opened inside of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.work import Report, add
from conduit_tasks.micro_batch.isolated import ChildDied, in_child

log = logging.getLogger(__name__)

Span = tuple[int, int]


def deliver_carefully(
    deliver: Callable[[Span, Sequence[int]], Report],
    confirmed: Callable[[], Sequence[Span]],
    span: Span,
    *,
    forks: bool = True,
) -> Report:
    """Delivers `span` (both ends inside), the lower half always before the upper one (C9).

    `deliver(span, culprits)` runs in a child: it delivers what of the span is not confirmed, and dead-letters
    `culprits` without looking at them; what it raises is raised here. `forks`: see `in_child`.
    `confirmed()` asks the broker. The report counts what was confirmed by children that lived.
    """
    report = Report()
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
    """The spans to do, the lower half last: it is taken first. What is confirmed in between is skipped anyway."""
    first, last = left.ranges[0][0], left.ranges[-1][1]
    middle = (first + last) // 2
    return [(middle + 1, last), (first, middle)]


def _sum(a: Report, b: Report) -> Report:
    return Report(add(a.counts, b.counts), a.flushes + b.flushes, a.seconds + b.seconds)
