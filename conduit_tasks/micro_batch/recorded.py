"""Writes the ledger beside the deliveries (SEMANTICS X5).

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
from conduit_tasks.ledger.entry import Attempt, Tally, unrecorded
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
    return Tally(attempt)


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
    """Enters confirmed ranges that no attempt wrote, of the last two micro-batches a holder can have worked on."""
    broker = context.broker
    state = broker.deliveries.get(destination)
    found = {state.cursor + 1: state.confirmed}
    if state.cursor:
        last = broker.micro_batches.find(state.cursor)
        if last is not None and last.matched.get(destination):
            found[state.cursor] = RangeSet(((0, last.total - 1),))
    try:
        book = ledger(context)
        for number, confirmed in found.items():
            if not confirmed:
                continue
            micro_batch = broker.micro_batches.find(number)
            since = micro_batch.sealed_at if micro_batch else None
            rows = book.read(destination, since=since, micro_batch=number).to_pylist()
            known = RangeSet.of((r["first"], r["last"]) for r in rows if r["outcome"] != "open" and not r["epoch"])
            if left := confirmed.subtract(known):
                attempt = Attempt(
                    destination, number, f"unrecorded-{secrets.token_hex(4)}", "", context.pipeline.digest(), left
                )
                book.write(unrecorded(attempt, left))
    except SpoolError as problem:
        log.warning("the ledger cannot be completed: %s", problem)


def collect_ledger(context: Context) -> None:
    """Removes what is past its retention, and rolls days that are over."""
    try:
        ledger(context).collect(context.settings.ledger_retention)
    except SpoolError as problem:
        log.warning("the ledger is not collected: %s", problem)
