"""Selection of what a resend sends to one destination: dead letters with what waits behind them (SEMANTICS X2, X4), or
records of an interval: what it is missing, its dead letters, or all (X3)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters.book import rows_of
from conduit_tasks.dead_letters.columns import Columns, Look
from conduit_tasks.dead_letters.indexed import indexed_letters, taken
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, KEY, DeadLetterStore, Key
from conduit_tasks.errors import ConfigError
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.resend.before_fan_out import startable
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
    """Dead letters that one destination is sent, as columns of a look, and the number of parked records behind them
    that follow if nothing fails again. `paths`: the files that hold them."""

    destination: str
    letters: pa.Table
    waiting: int = 0
    paths: Mapping[int, str] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        """The letters in the order in which they are sent, without their records."""
        return sorted(rows_of(self.letters, self.paths), key=record_of)

    def as_json(self) -> dict[str, Any]:
        """Returns how much it is, as JSON types."""
        return {"destination": self.destination, "letters": self.letters.num_rows, "parked": self.waiting}


def shares(
    context: Context, selection: Selection, passed: Collection[Place] | None = None, look: Look | None = None
) -> tuple[list[ChosenLetters], list[str]]:
    """Returns what would be sent, and in sentences what is selected but cannot be sent. Changes nothing.

    Letters from before the fan-out come first, as a share of `_pipeline`. `passed`: in place of that share, the records
    that have passed the fan-out; the destinations' letters of them are included. `look`: at the letters of the
    pipeline, if there is one already.
    """
    out, said = list[ChosenLetters](), list[str]()
    pipeline, before = context.pipeline, selection.destination == BEFORE_FAN_OUT
    own = None if before else selection.destination
    if look is None:
        root = context.settings.path(context.settings.dead_letters)
        look = Columns(root, pipeline.id, own).look()
    # The store is read first: what is stored and indexed meanwhile is missing from both.
    opened = indexed_letters(look.letters, context.broker, own)
    chosen = taken(opened, selection)
    counts = {each["values"]: each["counts"] for each in pc.value_counts(chosen["destination"]).to_pylist()}
    for name in sorted(counts.keys() - {BEFORE_FAN_OUT, *(d.id for d in pipeline.destinations)}):
        said.append(
            f"{counts[name]:,} dead letter(s) belong to {name}, which is no destination of {pipeline.id} any more"
        )
    if passed is None and counts.get(BEFORE_FAN_OUT):
        found, why = startable(pipeline, _of_records(opened, chosen, BEFORE_FAN_OUT, _PLACE))
        said += why
        if found.num_rows:
            out.append(ChosenLetters(BEFORE_FAN_OUT, found, paths=look.paths))
    for destination in pipeline.destinations:
        if selection.destination not in (None, BEFORE_FAN_OUT, destination.id):
            continue
        # A record may have failed in several epochs: it is sent once, and settles all its letters.
        found = _of_records(opened, chosen, destination.id, _RECORD, passed or ())
        waiting = 0 if before else len(Waiting(context, destination, look.letters).released(partial(_keys, found)))
        if found.num_rows or waiting:
            out.append(ChosenLetters(destination.id, found, waiting, look.paths))
    return out, said


_PLACE = ("micro_batch", "seq")
_RECORD = ("micro_batch", "epoch", "seq", "ord")
"""Names that tell the records of letters apart: before the fan-out, and at a destination (`record_of`)."""


def _of_records(
    opened: pa.Table, chosen: pa.Table, destination: str, by: Sequence[str], passed: Collection[Place] = ()
) -> pa.Table:
    """Returns the open letters of a destination that are of the chosen letters' records, or of these places."""
    opened, chosen = (of.filter(pc.equal(of["destination"], destination)) for of in (opened, chosen))
    mine = pc.is_in(_told(opened, by), value_set=_told(chosen, by))
    if passed:
        places = pa.array([f"{batch}-{seq}" for batch, seq in passed], pa.string())
        mine = pc.or_(mine, pc.is_in(_told(opened, _PLACE), value_set=places))
    return opened.filter(mine)


def _told(letters: pa.Table, by: Sequence[str]) -> pa.ChunkedArray:
    """Returns these columns of letters as a text each. An epoch counts only where there is no micro-batch."""
    of = {name: letters[name] for name in by}
    if "epoch" in of:
        of["epoch"] = pc.if_else(pc.equal(letters["micro_batch"], 0), letters["epoch"], 0)
    return pc.binary_join_element_wise(*(part.cast(pa.string()) for part in of.values()), "-")


def _keys(letters: pa.Table) -> set[Key]:
    return set(zip(*(letters[name].to_pylist() for name in KEY)))


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
    letters = Columns(context.settings.path(context.settings.dead_letters), context.pipeline.id, destination).look()
    opened = indexed_letters(letters.letters, context.broker, destination).select(["id", *KEY])
    for id, *key in zip(*(column.to_pylist() for column in opened.columns)):
        found.setdefault(id, []).append(cast("Letter", tuple(key)))
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
