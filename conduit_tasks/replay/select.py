"""Selection of a replay's records for one destination: what it is missing, its dead letters, or all (SEMANTICS X3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from conduit_tasks.errors import ConfigError
from conduit_tasks.record.schema import SPOOL_SCHEMA, to_records
from conduit_tasks.replay.interval import Ask, EventTime
from conduit_tasks.replay.prepare import Before, Portion, Prepared

if TYPE_CHECKING:
    from conduit_tasks.broker.redrive import Letter
    from conduit_tasks.micro_batch.context import Context
    from conduit_tasks.spool.spool import Spool


Batches = Iterator[tuple["np.ndarray[Any, Any]", pa.RecordBatch]]


@dataclass(frozen=True)
class Selected:
    """Rows of a portion that one destination is to get. They keep the portion's numbers, whatever is selected."""

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

    def rows(self, batches: Batches | None = None) -> Batches:
        """Yields the rows of `batches` (None: of `wanted`) that are sent."""
        for seqs, batch in self.wanted() if batches is None else batches:
            taken = np.fromiter(map(self.take, to_records(batch, self.portion.origins)), bool, batch.num_rows)
            if taken.any():
                yield seqs[taken], batch.filter(pa.array(taken))

    def seqs(self) -> dict[int, list[str]]:
        """Returns seq → ids of its records."""
        found: dict[int, list[str]] = {}
        for seqs, rows in self.rows():
            for seq, record in zip(seqs.tolist(), to_records(rows, self.portion.origins)):
                found.setdefault(seq, []).append(record.id)
        return found


def choosing(context: Context, ask: Ask, destination: str) -> Callable[[Portion], Callable[[Any], bool]]:
    """Returns a function that says per portion which of its records are sent. Raises ConfigError if it cannot be known
    what is missing."""
    if ask.what == "all":
        return lambda _: lambda _: True
    letters = letters_of(context, destination)
    if ask.what == "failed":
        return lambda _: lambda record: record.id in letters
    broker, happened = context.broker, EventTime(context.pipeline)
    joined, has = broker.replays.joined(destination), broker.replays.replayed(destination)
    if joined is None:
        raise ConfigError(
            f"what {destination} is missing is not known: where its live stream began was not recorded, or the broker "
            "forgot it, or micro-batches were collected while it was away. Replay `all` of the interval"
        )

    def of(portion: Portion) -> Callable[[Any], bool]:
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
    return sum(len(Selected(context, spool, p, destination, take(p)).seqs()) for p in made.portions)


def letters_of(context: Context, destination: str) -> dict[str, list[Letter]]:
    """Returns id of a record → its dead letters that are still open at a destination."""
    from conduit_tasks.dead_letters.book import read_book
    from conduit_tasks.dead_letters.marks import Marks
    from conduit_tasks.dead_letters.store import DeadLetterStore

    root = context.settings.path(context.settings.dead_letters)
    stores = DeadLetterStore(root, context.pipeline.id), Marks(root, context.pipeline.id)
    found: dict[str, list[Letter]] = {}
    for entry in read_book(*stores, context.broker, destination).entries:
        if entry.open:
            found.setdefault(str(entry.row["id"]), []).append(entry.key)
    return found
