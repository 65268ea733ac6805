"""All dead letters of a pipeline: the letters in the store, together with their state in the broker's index.

The index says which letters are open; the store has the letters themselves. After a crash between the two, or if one of
them was lost, they differ: that is shown, never hidden (SEMANTICS C14). Of the store is read what a look reads
(`columns`); `whole` reads the rest, of the letters that are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters.columns import Columns
from conduit_tasks.dead_letters.indexed import index_name, taken
from conduit_tasks.dead_letters.marks import Mark, Marks
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import BEFORE_FAN_OUT, KEY, DeadLetterStore, Key, as_field, row_key

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker

OPEN, CLAIMED, UNKNOWN = "open", "being redriven", "not in the index"
SHOWN = [*KEY, "destination", "id", "node", "error", "error_class", "attempts", "at", "file"]
"""Columns of a look that a letter's row has."""


@dataclass(frozen=True)
class LetterEntry:
    """One letter of the store: its key, `destination`, `file`, and what lists show of it, but not its record. `state`:
    one of the constants above, or the outcome of its redrive; `mark`: the mark of that redrive."""

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
    """Letters of some destinations, `_pipeline` included, in order of (destination, epoch, micro-batch, seq, ord), with
    their `state`. `marks`: destination → what redrives made of its letters. `lost`: destination → how many entries of
    the index are not in the store."""

    letters: pa.Table
    paths: Mapping[int, str]
    marks: Mapping[str, Mapping[Key, Mark]]
    lost: Mapping[str, int]

    @property
    def entries(self) -> list[LetterEntry]:
        """All letters."""
        return self.select(Selection(), every=True)

    @property
    def open(self) -> pa.Table:
        """The letters that are open."""
        return self.letters.filter(pc.is_in(self.letters["state"], value_set=pa.array([OPEN, CLAIMED])))

    def select(self, selection: Selection, *, every: bool = False) -> list[LetterEntry]:
        """Returns the selected letters that are open, or with `every` all selected ones, in their order."""
        found = taken(self.letters if every else self.open, selection)
        return [
            LetterEntry(row, state, self.marks[row["destination"]].get(row_key(row)))
            for row, state in zip(rows_of(found, self.paths), found["state"].to_pylist())
        ]

    def differences(self) -> list[str]:
        """Returns the differences between store and index, in sentences."""
        said = [
            f"{destination}: {count:,} dead letter(s) are in the broker's index only: `plugin: log` dropped them, or "
            "their files were removed. A plugin's copy is not read: replay what they came from"
            for destination, count in self.lost.items()
            if count
        ]
        unknown = self.letters.filter(pc.equal(self.letters["state"], UNKNOWN))["destination"]
        for each in sorted(pc.value_counts(unknown).to_pylist(), key=lambda each: str(each["values"])):
            said.append(
                f"{each['values']}: {each['counts']:,} letter(s) are in the store only: their record went on after all "
                "(a crash came between storing and confirming), or the broker lost its state"
            )
        return said


def read_book(store: DeadLetterStore, marks: Marks, broker: Broker, destination: str | None = None) -> Book:
    """Reads store and index of one destination, or of all that either of them knows."""
    # The store is read first: what is stored and indexed meanwhile is missing from both, not from one.
    columns = Columns(store.root, store.pipeline, destination)
    look = columns.look()
    wanted = [destination] if destination else sorted({*store.destinations(), *indexed(broker)})
    states, lost, marked = [""] * look.letters.num_rows, dict[str, int](), dict[str, dict[Key, Mark]]()
    for each in wanted:
        name = index_name(each)
        places = pc.indices_nonzero(pc.equal(look.letters["destination"], each)).to_pylist()
        mine = look.letters["field"].take(pa.array(places, pa.int64())).to_pylist()
        index = set(broker.dead_letters.fields(name))
        claimed = {as_field(key) for key in broker.redrives.claimed(name)}
        marked[each] = marks.read(each)
        marked[each] |= {s.key: Mark(s.outcome, s.epoch, _moment(s.at), s.by) for s in broker.redrives.settled(name)}
        done = {as_field(key): mark.outcome for key, mark in marked[each].items()}
        for place, field in zip(places, mine):
            states[place] = (CLAIMED if field in claimed else OPEN) if field in index else done.get(field, UNKNOWN)
        # Missing letters are looked up again: they may have been redriven, purged or stored since.
        if missing := index.difference(mine):
            missing -= set(columns.look().letters["field"].to_pylist())
            lost[each] = len(missing & set(broker.dead_letters.fields(name)))
    letters = look.letters.append_column("state", pa.array(states, pa.string()))
    return Book(letters, look.paths, marked, lost)


def rows_of(letters: pa.Table, paths: Mapping[int, str]) -> list[dict[str, Any]]:
    """Returns letters of a look as rows; `file` is the path."""
    return [{**row, "file": paths[row["file"]]} for row in letters.select(SHOWN).to_pylist()]


def whole(store: DeadLetterStore, entries: Sequence[LetterEntry]) -> list[LetterEntry]:
    """Returns letters with all columns that people look at, their record among them."""
    rows = store.whole([entry.row for entry in entries])
    return [replace(entry, row=row) for entry, row in zip(entries, rows)]


def indexed(broker: Broker) -> list[str]:
    """Returns the destinations that the broker has, and `_pipeline`, by their names in the store."""
    return [*broker.access.members(broker.keys.destinations), BEFORE_FAN_OUT]


def _moment(at: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC)
