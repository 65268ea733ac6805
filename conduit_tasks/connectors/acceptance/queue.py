"""Checks of a queue: messages that were read and not acked come again, acked ones do not (SEMANTICS T2)."""

from __future__ import annotations

import time
from collections.abc import Callable, Set

from conduit_tasks.connectors.acceptance.records import Marked, once
from conduit_tasks.connectors.acceptance.report import Checks, NotTried, Unmet
from conduit_tasks.connectors.acceptance.resources import leaving_nothing_open
from conduit_tasks.connectors.acceptance.source import MORE, PAGE, STEPS, Put, Reading, unique
from conduit_tasks.connectors.base import Source


def queue_checks(checks: Checks, make: Callable[[], Source], marked: Marked, put: Put | None, wait: float) -> None:
    """Reads and acks all messages of the queue. `wait`: seconds in which an unacked message must come again."""
    lost, settled = Reading(make), Reading(make)
    with checks.check("what waits is read, by an attempt that is lost") as check:
        deadline = time.monotonic() + wait
        while not lost.count and time.monotonic() < deadline:
            if not lost.step(PAGE):
                time.sleep(0.05)
        if not lost.count:
            raise Unmet("there is nothing to read; put records there, or give what does: the destination, or feed")
        check.why = f"{lost.count} records"
    if not checks.sound:
        return
    with checks.check("what that attempt read comes again, for it acked nothing") as check, leaving_nothing_open():
        _take_out(settled, marked, max(1, lost.count // STEPS), wait, least={row[0] for row in _rows(lost)})
        check.why = f"{settled.count} records in {settled.slices} slices"
    with checks.check("no two records of a partition have the same position") as check:
        check.why = unique(settled)
    with checks.check("an ack that is given again does no harm"):
        settled.settle()
    with checks.check("what was acked does not come again") as check:
        seen = settled.count
        settled.step(PAGE)
        if settled.count != seen:
            raise Unmet(f"{settled.count - seen} records came although everything was acked")
    with checks.check("what comes later is read, and only that") as check:
        if put is None:
            raise NotTried("give the destination of the same system, or feed")
        seen = settled.count
        put(marked.records(MORE))
        _take_out(settled, marked, PAGE, wait)
        if settled.count != seen + MORE:
            raise Unmet(f"{MORE} records were put there, {settled.count - seen} were read")
        check.why = f"{MORE} records"
    if put is not None:
        with checks.check("what was put there is read, each record once") as check:
            check.why = once(marked, marked.count(settled.records))


def _rows(reading: Reading) -> list[tuple[object, ...]]:
    return [row for rows in reading.rows.values() for row in rows]


def _take_out(reading: Reading, marked: Marked, most: int, wait: float, least: Set[object] = frozenset()) -> None:
    """Reads and acks until nothing is left and `least` (positions) and every marked record were read, or until nothing
    came for `wait` seconds. Raises Unmet if positions of `least` are missing then; missing marks are for the caller to
    find."""
    deadline = time.monotonic() + wait
    while True:
        before = reading.count
        slices = reading.step(most)
        if slices:
            reading.settle()
        if reading.count > before:
            deadline = time.monotonic() + wait
            continue
        missing = least - {row[0] for row in _rows(reading)}
        if not missing and not marked.missing(marked.count(reading.records)):
            return
        if time.monotonic() > deadline:
            if missing:
                raise Unmet(f"{len(missing)} records did not come again within {wait:g} s")
            return
        time.sleep(0.05)
