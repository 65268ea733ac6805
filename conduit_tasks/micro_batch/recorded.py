"""Writes the ledger beside the deliveries: a tally for each attempt, and what a killed one had confirmed, entered by
the next holder (SEMANTICS X5).

The ledger is bookkeeping: if it cannot be written, that is logged and the delivery goes on. An attempt that was killed
writes nothing; what it had confirmed is entered by the next holder of the destination's lease.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.errors import SpoolError
from conduit_tasks.ledger.entry import Attempt, Tally, scattered, unrecorded
from conduit_tasks.ledger.store import Ledger

if TYPE_CHECKING:
    from conduit_tasks.delivery.work import Work
    from conduit_tasks.micro_batch.context import Context

log = logging.getLogger(__name__)


def ledger(context: Context) -> Ledger:
    """Returns the pipeline's ledger."""
    return Ledger(context.spool, context.pipeline.id)


def tally_of(context: Context, work: Work, run: str, token: int) -> Tally:
    """Returns a tally to deliver a work with. `token`: of the lease."""
    span = RangeSet(((work.first, work.last),)) if work.first <= work.last else RangeSet()
    attempt = Attempt(
        destination=work.destination,
        micro_batch=work.micro_batch,
        id=attempt_id(token),
        run=run,
        config=context.pipeline.digest(),
        open=span.subtract(RangeSet.of(work.confirmed)),
        epoch=work.epoch,
    )
    shard = work.shard
    return Tally(attempt) if shard is None else Tally(attempt, own=shard.spans, scattered=shard.spans is None)


def attempt_id(token: int) -> str:
    """Returns an id that no other attempt has."""
    return f"{token}-{secrets.token_hex(4)}"


@contextmanager
def recording(context: Context, *tallies: Tally) -> Iterator[None]:
    """Writes the tallies when the delivery ends, which runs inside, well or not."""
    try:
        yield
    except Exception as error:
        _write(context, tallies, error)
        raise
    _write(context, tallies, None)


def _write(context: Context, tallies: Sequence[Tally], error: Exception | None) -> None:
    try:
        for tally in tallies:
            ledger(context).write(tally.table(error))
    except SpoolError as problem:
        log.warning("an attempt is missing in the ledger: %s", problem)


def note_unrecorded(context: Context, destination: str) -> None:
    """Enters confirmed ranges that no attempt wrote, of the last two micro-batches a holder can have worked on, or of
    the group that it has worked on."""
    broker = context.broker
    state = broker.deliveries.get(destination)
    found = {state.cursor + 1: (state.confirmed, state.division.confirmed if state.division else 0)}
    found |= {division.micro_batch: (RangeSet(), division.confirmed) for division in state.younger}
    first, end = state.group
    for number in {state.cursor, *range(first, min(state.cursor, end + 1))} - {0}:
        last = broker.micro_batches.find(number)
        if last is not None and (matched := last.matched.get(destination)):
            found[number] = (RangeSet(((0, last.total - 1),)), matched)
    try:
        book = ledger(context)
        for number, (confirmed, matched) in found.items():
            if not confirmed and not matched:
                continue
            micro_batch = broker.micro_batches.find(number)
            since = micro_batch.sealed_at if micro_batch else None
            rows = book.read(destination, since=since, micro_batch=number).to_pylist()
            rows = [row for row in rows if row["outcome"] != "open" and not row["epoch"]]
            divided = not confirmed or any(scattered(row) for row in rows)
            if divided:
                # Several tasks: how many of them no row is about, but not which.
                records = max(0, matched - sum(row["records"] for row in rows))
                left = RangeSet(((0, micro_batch.total - 1),)) if micro_batch and records else RangeSet()
            else:
                records, left = 0, confirmed.subtract(RangeSet.of((row["first"], row["last"]) for row in rows))
            if left:
                attempt = Attempt(
                    destination, number, f"unrecorded-{secrets.token_hex(4)}", "", context.pipeline.digest(), left
                )
                book.write(unrecorded(attempt, left, records))
    except SpoolError as problem:
        log.warning("the ledger cannot be completed: %s", problem)


def collect_ledger(context: Context) -> None:
    """Removes what is past its retention, and rolls days that are over."""
    try:
        ledger(context).collect(context.settings.ledger_retention)
    except SpoolError as problem:
        log.warning("the ledger is not collected: %s", problem)
