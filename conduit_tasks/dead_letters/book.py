"""All dead letters of a pipeline: the letters in the store, together with their state in the broker's index.

The index says which letters are open; the store has the letters themselves. After a crash between the two, or if one of
them was lost, they differ: that is shown, never hidden (SEMANTICS C14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.dead_letters.marks import Mark, Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, DeadLetterStore, Key, row_key

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.state import DeadEntry

OPEN, CLAIMED, UNKNOWN = "open", "being redriven", "not in the index"


@dataclass(frozen=True)
class LetterEntry:
    """One letter of the store. `state`: one of the constants above, or the outcome of its redrive; `mark`: the mark of
    that redrive."""

    row: dict[str, Any]
    state: str
    mark: Mark | None = None

    @property
    def destination(self) -> str:
        return str(self.row["destination"])

    @property
    def key(self) -> Key:
        return row_key(self.row)

    @property
    def open(self) -> bool:
        """Whether it is still a dead letter, as far as is known."""
        return self.state in (OPEN, CLAIMED)


@dataclass(frozen=True)
class Book:
    """Letters of some destinations, `_pipeline` included. `lost`: entries of the index that are not in the store."""

    entries: list[LetterEntry]
    lost: dict[str, list[DeadEntry]]

    def select(self, selection: Selection, *, every: bool = False) -> list[LetterEntry]:
        """Returns the selected letters that are open, or with `every` all selected ones, in order of (destination,
        epoch, micro-batch, seq, ord)."""
        return [e for e in self.entries if (every or e.open) and selection.takes(e.row)]

    def differences(self) -> list[str]:
        """Returns the differences between store and index, in sentences."""
        said = []
        for destination, entries in self.lost.items():
            if entries:
                said.append(
                    f"{destination}: {len(entries):,} dead letter(s) are in the broker's index only: `plugin: log` "
                    "dropped them, or their files were removed. A plugin's copy is not read: replay what they "
                    "came from"
                )
        unknown = Counter(e.destination for e in self.entries if e.state == UNKNOWN)
        for destination, count in sorted(unknown.items()):
            said.append(
                f"{destination}: {count:,} letter(s) are in the store only: their record went on after all (a crash "
                "came between storing and confirming), or the broker lost its state"
            )
        return said


def read_book(
    store: DeadLetterStore, marks: Marks, broker: Broker, destination: str | None = None, columns: Sequence[str] = ()
) -> Book:
    """Reads store and index of one destination, or of all that either of them knows. `columns`: columns of the store to
    read; empty: the columns that people look at."""
    wanted = [destination] if destination else sorted({*store.destinations(), *indexed(broker)})
    entries: list[LetterEntry] = []
    lost: dict[str, list[DeadEntry]] = {}
    for each in wanted:
        name = index_name(each)
        # The store is read first: what is stored and indexed meanwhile is missing from both, not from one.
        rows = store.rows(each, columns) if columns else store.rows(each)
        index = {(e.epoch, e.micro_batch, e.seq, e.ordinal): e for e in broker.dead_letters.entries(name)}
        claimed = broker.redrives.claimed(name)
        done = marks.read(each)
        done |= {s.key: Mark(s.outcome, s.epoch, _moment(s.at), s.by) for s in broker.redrives.settled(name)}
        keys = set()
        for row in rows:
            key = row_key(row)
            keys.add(key)
            mark = done.get(key)
            state = mark.outcome if mark else UNKNOWN
            if key in index:
                state = CLAIMED if key in claimed else OPEN
            entries.append(LetterEntry(row, state, mark))
        # Missing letters are looked up again: they may have been redriven, purged or stored since.
        missing = index.keys() - keys
        if missing:
            missing -= {row_key(row) for row in store.rows(each, ["id"])}
            still = {(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in broker.dead_letters.entries(name)}
            lost[each] = [index[key] for key in sorted(missing & still)]
    return Book(entries, lost)


def indexed(broker: Broker) -> list[str]:
    """Returns the destinations that the broker has, and `_pipeline`, by their names in the store."""
    return [*broker.access.members(broker.keys.destinations), BEFORE_FAN_OUT]


def index_name(destination: str) -> str:
    """Returns the name that a destination of the store has in the broker's index."""
    return "" if destination == BEFORE_FAN_OUT else destination


def _moment(at: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC)
