"""Selection of what a resend sends to one destination: dead letters with what waits behind them (SEMANTICS X2, X4), or
records of an interval: what it is missing, its dead letters, or all (X3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.dead_letters.book import read_book
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore, row_key
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.resend.before_fan_out import place_of, startable
from conduit_tasks.resend.interval import Ask, EventTime
from conduit_tasks.resend.prepare import Before, Portion, Prepared
from conduit_tasks.resend.waiting import Waiting, row_position

if TYPE_CHECKING:
    from conduit_tasks.broker.redrive import Letter
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.resend.reprocess import Place
    from conduit_tasks.spool.spool import Spool


Rows = list[dict[str, Any]]
Batches = Iterator[tuple["np.ndarray[Any, Any]", pa.RecordBatch]]


@dataclass(frozen=True)
class ChosenLetters:
    """Dead letters that one destination is sent, and the number of parked records behind them that follow if nothing
    fails again."""

    destination: str
    rows: Rows
    waiting: int = 0


def shares(
    context: Context, selection: Selection, passed: Collection[Place] | None = None
) -> tuple[list[ChosenLetters], list[str]]:
    """Returns what would be sent, and in sentences what is selected but cannot be sent. Changes nothing.

    Letters from before the fan-out come first, as a share of `_pipeline`. `passed`: in place of that share, the records
    that have passed the fan-out; the destinations' letters of them are included.
    """
    out, said = [], []
    pipeline, before = context.pipeline, selection.destination == BEFORE_FAN_OUT
    book = read_book(*stores(context), context.broker, None if before else selection.destination)
    chosen = book.select(selection)
    known = {BEFORE_FAN_OUT, *(d.id for d in pipeline.destinations)}
    for name in sorted({e.destination for e in chosen} - known):
        count = sum(e.destination == name for e in chosen)
        said.append(f"{count:,} dead letter(s) belong to {name}, which is no destination of {pipeline.id} any more")
    if passed is None:
        places = {place_of(e.row) for e in chosen if e.destination == BEFORE_FAN_OUT}
        rows = [e.row for e in book.entries if e.open and e.destination == BEFORE_FAN_OUT]
        rows, why = startable(pipeline, [row for row in rows if place_of(row) in places])
        said += why
        if rows:
            out.append(ChosenLetters(BEFORE_FAN_OUT, rows))
    for destination in pipeline.destinations:
        if selection.destination not in (None, BEFORE_FAN_OUT, destination.id):
            continue
        # A record may have failed in several epochs: it is sent once, and settles all its letters.
        records = {record_of(e.row) for e in chosen if e.destination == destination.id}
        rows = [e.row for e in book.entries if e.open and e.destination == destination.id]
        rows = [row for row in rows if record_of(row) in records or place_of(row) in (passed or ())]
        rows.sort(key=record_of)
        waiting = 0 if before else len(Waiting(context, destination).released({row_key(row) for row in rows}))
        if rows or waiting:
            out.append(ChosenLetters(destination.id, rows, waiting))
    return out, said


def record_of(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """Returns what a row's record is told from others by, in the order in which they are sent. A replay numbers the
    records of each portion from 0, in no micro-batch: there the epoch tells them apart, which each portion has."""
    m, seq, ordinal = row_position(row)
    return m, 0 if m else row["epoch"], seq, ordinal


@dataclass(frozen=True)
class ChosenRows:
    """Rows of a portion that one destination is sent. They keep the portion's numbers, whatever is selected."""

    context: Context
    spool: Spool
    portion: Portion
    destination: str
    take: Callable[[Any], bool]

    def wanted(self) -> Batches:
        """Yields (seqs, rows) of all that the destination's trigger wants, in order."""
        wanted = f"to.{self.destination}"
        row_filter = wanted if wanted in self.spool.columns(self.portion.file) else None
        for batch in self.spool.read(self.portion.file, SPOOL_SCHEMA.names, row_filter):
            if batch.num_rows:
                yield batch.column("n").to_numpy(), batch

    def chosen(self, batches: Batches | None = None) -> Batches:
        """Yields the rows of `batches` (None: of `wanted`) that are sent."""
        for seqs, batch in self.wanted() if batches is None else batches:
            taken = np.fromiter(map(self.take, to_records(batch, self.portion.origins)), bool, batch.num_rows)
            if taken.any():
                yield seqs[taken], batch.filter(pa.array(taken))

    def seqs(self) -> dict[int, list[str]]:
        """Returns seq → ids of its records."""
        found: dict[int, list[str]] = {}
        for seqs, rows in self.chosen():
            for seq, record in zip(seqs.tolist(), to_records(rows, self.portion.origins)):
                found.setdefault(seq, []).append(record.id)
        return found


def choosing(context: Context, ask: Ask, destination: str) -> Callable[[Portion], Callable[[Any], bool]]:
    """Returns a function that says per portion which of its records are sent. Raises ConfigError if it cannot be known
    what is missing."""
    if ask.what == "all":
        return lambda _: lambda _: True
    every = letters_of(context, destination)
    if ask.what == "failed":

        def failed(portion: Portion) -> Callable[[Any], bool]:
            letters = letters_in(portion, every)
            return lambda record: record.id in letters

        return failed
    broker, happened = context.broker, EventTime(context.pipeline)
    joined, has = broker.replays.joined(destination), broker.replays.replayed(destination)
    if joined is None:
        raise ConfigError(
            f"what {destination} is missing is not known: where its live stream began was not recorded, or the broker "
            "forgot it, or micro-batches were collected while it was away. Replay `all` of the interval"
        )

    def of(portion: Portion) -> Callable[[Any], bool]:
        letters = letters_in(portion, every)
        if portion.batch is not None:
            inside = portion.batch <= joined.batch
            return lambda record: inside and record.id not in letters and (happened(record) or 0) not in has
        before = Before(context, portion.source, joined.sources.get(portion.source, {}))

        def misses(record: Any) -> bool:
            said = before(record.position)
            if said is None:
                raise ConfigError(
                    f"source {portion.source} cannot tell which records {destination} has by their positions: replay "
                    "`all`"
                )
            return said and record.id not in letters and (happened(record) or 0) not in has

        return misses

    return of


def count(context: Context, spool: Spool, ask: Ask, made: Prepared, destination: str) -> int:
    """Returns the number of records that would be sent."""
    take = choosing(context, ask, destination)
    return sum(len(ChosenRows(context, spool, p, destination, take(p)).seqs()) for p in made.portions)


def letters_of(context: Context, destination: str) -> dict[str, list[Letter]]:
    """Returns id of a record → its dead letters that are still open at a destination."""
    found: dict[str, list[Letter]] = {}
    for entry in read_book(*stores(context), context.broker, destination).entries:
        if entry.open:
            found.setdefault(str(entry.row["id"]), []).append(entry.key)
    return found


def letters_in(portion: Portion, letters: dict[str, list[Letter]]) -> dict[str, list[Letter]]:
    """Returns those of the letters that records of the portion may have left: not those of another micro-batch, in
    which a row that changed at its source had the same id (`singer`). A letter of a replay is of no micro-batch."""
    if portion.batch is None:
        return letters
    of = {id: [key for key in keys if key[1] in (0, portion.batch)] for id, keys in letters.items()}
    return {id: keys for id, keys in of.items() if keys}


def stores(context: Context) -> tuple[DeadLetterStore, Marks]:
    """Returns the pipeline's dead letters, and what became of them."""
    root = context.settings.path(context.settings.dead_letters)
    return DeadLetterStore(root, context.pipeline.id), Marks(root, context.pipeline.id)
