"""The dead letters of a pipeline as a whole: the letters of the store, beside what the broker's index says of them.

The index says which are open; the store has the letters. After a crash between the two, or where one of them was lost,
they differ: that is shown, never hidden (SEMANTICS C14).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from conduit_tasks.delivery.dead_letter_marks import Mark, Marks
from conduit_tasks.delivery.dead_letter_select import Selection
from conduit_tasks.delivery.dead_letter_store import BEFORE_FAN_OUT, DeadLetterStore, Key, row_key

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.state import DeadEntry

OPEN, CLAIMED, UNKNOWN = "open", "being redriven", "not in the index"


@dataclass(frozen=True)
class Entry:
    """One letter of the store. `state`: one of the above, or the outcome of its redrive; `mark`: how that ended."""

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
        """Whether it is a dead letter still, for all that is known."""
        return self.state in (OPEN, CLAIMED)


@dataclass(frozen=True)
class Book:
    """Everything there is of some destinations (with `_pipeline`). `lost`: in the index, and not in the store."""

    entries: list[Entry]
    lost: dict[str, list[DeadEntry]]

    def select(self, selection: Selection, *, every: bool = False) -> list[Entry]:
        """Open ones, or `every` one, in order of (destination, epoch, micro-batch, seq, ord)."""
        return [e for e in self.entries if (every or e.open) and selection.takes(e.row)]

    def differences(self) -> list[str]:
        """Where store and index disagree, in sentences."""
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
    """Reads store and index of one destination, or of all that either of them knows. `columns`: of the store, more
    than what people look at."""
    wanted = [destination] if destination else sorted({*store.destinations(), *indexed(broker)})
    entries: list[Entry] = []
    lost: dict[str, list[DeadEntry]] = {}
    for each in wanted:
        name = index_name(each)
        # The store is read first: what is stored and indexed meanwhile is missing from both, not from one.
        rows = store.rows(each, columns) if columns else store.rows(each)
        index = {(e.epoch, e.micro_batch, e.seq, e.ordinal): e for e in broker.dead_letters(name)}
        claimed = broker.claimed(name)
        done = marks.read(each)
        done |= {s.key: Mark(s.outcome, s.epoch, _moment(s.at), s.by) for s in broker.settled(name)}
        keys = set()
        for row in rows:
            key = row_key(row)
            keys.add(key)
            mark = done.get(key)
            state = mark.outcome if mark else UNKNOWN
            if key in index:
                state = CLAIMED if key in claimed else OPEN
            entries.append(Entry(row, state, mark))
        # Asked again for what is missing: it may have been redriven, purged or stored since.
        missing = index.keys() - keys
        if missing:
            missing -= {row_key(row) for row in store.rows(each, ["id"])}
            still = {(e.epoch, e.micro_batch, e.seq, e.ordinal) for e in broker.dead_letters(name)}
            lost[each] = [index[key] for key in sorted(missing & still)]
    return Book(entries, lost)


def indexed(broker: Broker) -> list[str]:
    """Destinations that the broker has, and `_pipeline`, as the store calls them."""
    return [*broker.members(broker.keys.destinations), BEFORE_FAN_OUT]


def index_name(destination: str) -> str:
    """A destination of the store as the broker's index calls it."""
    return "" if destination == BEFORE_FAN_OUT else destination


def _moment(at: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC)
