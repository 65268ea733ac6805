"""Look at all letters of a pipeline, as columns, for lists, counts and issues: no record, no row that is not shown, no
file that was read before; bounded over all pipelines.

A look reads only the files that were not there, or were another file, at the last one, and of each only its extract
(`extract`). The first one of a process finds most of them in what is kept for it (`kept`). Files without an extract are
read by their columns: a look may be given a time for that; it then says how many files are left, and the next one goes
on. Of 100,000 letters a look holds some 30 MB; the looks of all pipelines together hold `MOST` bytes, those that were
not asked for longest go first.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters import kept
from conduit_tasks.dead_letters.extract import EXTRACT
from conduit_tasks.dead_letters.issues import Groups, Issue
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import KEY, DeadLetterStore, as_field, fields
from conduit_tasks.spool.store import Stamp

MOST = 256 << 20
"""Bytes that the looks of all pipelines hold together; the last one stays also if it is larger."""
CAUSES = 100
"""Issues of a pipeline that are held, of some 4 KB each; more of them are found again at each look."""
AGAIN = 5
"""Looks at a store whose files are being removed, one after the other."""
LEAST = 100
"""Files that a look reads even if its time is over: there is an end."""
SCHEMA = pa.schema([*EXTRACT, ("destination", pa.string()), ("file", pa.int64())])
"""Columns of a look. `file`: number of the file that holds a letter."""


@dataclass(frozen=True)
class Look:
    """All letters of a pipeline, each once, in order of (destination, epoch, micro-batch, seq, ord). `settled`: those
    that a redrive has settled; `paths`: number of a file → its path; `left`: files that a later look reads."""

    letters: pa.Table
    settled: pa.ChunkedArray
    paths: Mapping[int, str]
    left: int = 0

    @cached_property
    def open(self) -> pa.Table:
        """The letters that no redrive has settled."""
        return self.letters.filter(pc.invert(self.settled))

    @property
    def causes(self) -> list[Issue]:
        """The issues of the open letters, in no order, as if nobody had decided about them."""
        return self._grouped() if self._held is None else self._held

    @cached_property
    def _held(self) -> list[Issue] | None:
        return None if len(pc.unique(self.open["issue"])) > CAUSES else self._grouped()

    def _grouped(self) -> list[Issue]:
        return [*Groups(self.open).issues()] if self.open.num_rows else []

    def find(self, destination: str, key: tuple[int, int, int, int]) -> str | None:
        """Returns the path of the file that holds an open letter; None: there is none."""
        of = self.open
        found = of.filter(pc.and_(pc.equal(of["destination"], destination), pc.equal(of["field"], as_field(key))))
        return self.paths[found["file"][0].as_py()] if found.num_rows else None


@dataclass
class Columns:
    """Letters of one pipeline, held from look to look. `destination`: only its letters; `parked`: the records that wait
    behind them. Safe to use from several threads: one reads, the others wait. Raises ConduitError, naming the file or
    folder."""

    root: str
    pipeline: str
    destination: str | None = None
    parked: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stamps: dict[str, Stamp] = field(default_factory=dict)
    _paths: dict[int, str] = field(default_factory=dict)
    _number: int = 0
    _rows: pa.Table = field(default_factory=SCHEMA.empty_table)
    _marks: dict[str, tuple[Stamp, pa.Array]] = field(default_factory=dict)
    _look: Look | None = None
    _saved: dict[str, Stamp] = field(default_factory=dict)
    """Files of which is kept what was found in them, as far as is known."""
    bytes: int = 0
    """Bytes that it holds."""
    counted: int = 0
    """As many of them are in the sum of all."""
    _left: int = 0

    def look(self, within: float = inf) -> Look:
        """Returns the letters as they are now. `within`: seconds after which no further file is read, but `LEAST`."""
        with self._lock:
            for left in range(AGAIN - 1, -1, -1):
                try:
                    return self._looked(time.monotonic() + within)
                except FileNotFoundError:  # it was removed, or rewritten, between the two
                    if not left:
                        raise
        raise AssertionError

    def _looked(self, until: float) -> Look:
        store, marks = DeadLetterStore(self.root, self.pipeline, parked=self.parked), Marks(self.root, self.pipeline)
        names = store.destinations() if self.destination is None else [self.destination]
        stamps = {name: store.stamps(name) for name in names}
        marked = {name: {} if self.parked else marks.stamps(name) for name in names}
        there = {path: stamp for found in stamps.values() for path, stamp in found.items()}
        if self._look is None or there != self._stamps:
            self._read(store, stamps, there, until)
            self._look = None
        fresh = {path: stamp for found in marked.values() for path, stamp in found.items()}
        if self._look is None or fresh != {path: stamp for path, (stamp, _) in self._marks.items()}:
            self._marks = {
                path: self._marks[path]
                if path in self._marks and self._marks[path][0] == stamp
                else (stamp, fields(marks.keys(path)))
                for path, stamp in fresh.items()
            }
            letters = newest(self._rows, self._paths) if self._look is None else self._look.letters
            arrays = {name: [self._marks[path][1] for path in found] for name, found in marked.items()}
            self._look = Look(letters, _settled(letters, arrays), dict(self._paths), self._left)
            issues = min(CAUSES, len(pc.unique(letters["issue"])))
            self.bytes = int(self._rows.nbytes + letters.nbytes * 2) + issues * 4_096
        return self._look

    def _read(
        self, store: DeadLetterStore, stamps: Mapping[str, Mapping[str, Stamp]], there: dict[str, Stamp], until: float
    ) -> None:
        """Reads the files that are new, and forgets those that are gone."""
        if (self._left or not self._paths) and kept.worth(there):
            self._restore()
        same = {number for number, path in self._paths.items() if there.get(path, ()) == self._stamps[path]}
        known = {self._paths[number] for number in same}
        new = [(name, path) for name, found in stamps.items() for path in sorted(found) if path not in known]
        read = list[pa.RecordBatch]()
        for _, path in new:
            if len(read) >= LEAST and time.monotonic() >= until:
                break
            read.append(store.extract(path))
        left, new = new[len(read) :], new[: len(read)]
        # From here on nothing fails that leaves one half done.
        rows = self._rows
        if len(same) < len(self._paths):
            rows = rows.filter(pc.is_in(rows["file"], pa.array(sorted(same), pa.int64())))
        numbers = range(self._number, self._number + len(new))
        if new:
            counts, names = [batch.num_rows for batch in read], [*stamps]
            at = np.repeat(np.array([names.index(name) for name, _ in new], np.int64), counts)
            made = pa.Table.from_batches(read)
            made = made.append_column("destination", pa.array(names, pa.string()).take(pa.array(at)))
            made = made.append_column("file", pa.array(np.repeat(np.array(numbers, np.int64), counts)))
            rows = pa.concat_tables([rows, made]).combine_chunks()
        later = {path for _, path in left}
        self._stamps = {path: stamp for path, stamp in there.items() if path not in later}
        self._rows, self._number, self._left = rows, self._number + len(new), len(left)
        self._paths = {n: path for n, path in self._paths.items() if n in same}
        self._paths |= {number: path for number, (_, path) in zip(numbers, new)}
        if self.destination is None and not self.parked and not left:
            self._keep()

    def _restore(self) -> None:
        """Begins with what is kept, as if it had been the last look, unless that one has more."""
        found = None if self.parked else kept.load(self.root, self.pipeline, SCHEMA)
        if found is not None and len(found.paths) >= len(self._paths):
            self._rows, self._paths, self._stamps = found.rows, dict(found.paths), dict(found.stamps)
            self._number, self._saved = len(found.paths), dict(found.stamps)

    def _keep(self) -> None:
        """Keeps what was found for other processes, if much of it is new, or something is gone for good."""
        gone = self._saved.keys() - self._stamps.keys()
        fresh = {path: stamp for path, stamp in self._stamps.items() if self._saved.get(path) != stamp}
        if gone or kept.worth(fresh):
            kept.save(self.root, self.pipeline, kept.Kept(self._rows, self._paths, self._stamps))
            # If it could not be written: not again at each look.
            self._saved = dict(self._stamps)


_kept: OrderedDict[tuple[str, str], Columns] = OrderedDict()
_total = 0
"""Bytes of those that are kept, as far as they are `counted`."""
_lock = threading.Lock()


def look(root: str, pipeline: str, within: float = inf) -> Look:
    """Returns the letters of a pipeline as they are now, for those who ask again and again; `within` as `Columns.look`
    has it."""
    global _total  # noqa: PLW0603 - what belongs to `_kept`
    key = (root, pipeline)
    with _lock:
        if (columns := _kept.get(key)) is None:
            columns = _kept[key] = Columns(root, pipeline)
        _kept.move_to_end(key)
    found = columns.look(within)
    with _lock:
        # Not added up at each look: of a thousand pipelines that are asked for together, each would add up all.
        if columns.bytes != columns.counted and _kept.get(key) is columns:
            _total += columns.bytes - columns.counted
            columns.counted = columns.bytes
        while len(_kept) > 1 and _total > MOST:
            _total -= _kept.popitem(last=False)[1].counted
    return found


def is_known(root: str, pipeline: str) -> bool:
    """Returns whether the letters of a pipeline were looked at and are held: then `look` reads only what is new."""
    with _lock:
        return (root, pipeline) in _kept


def newest(rows: pa.Table, paths: Mapping[int, str]) -> pa.Table:
    """Returns each letter once, the newest of several, in order of (destination, epoch, micro-batch, seq, ord)."""
    if not rows.num_rows:
        return rows
    names = pa.array(sorted(pc.unique(rows["destination"]).to_pylist()), pa.string())
    parts = [pc.index_in(rows["destination"], value_set=names).to_numpy(), *(rows[name].to_numpy() for name in KEY)]
    files = {number: n for n, number in enumerate(sorted(paths, key=lambda number: paths[number]))}
    rank = np.vectorize(files.__getitem__, otypes=[np.int64])(rows["file"].to_numpy())
    order = np.lexsort((rank, rows["at"].cast(pa.int64()).to_numpy(), *reversed(parts)))
    last = np.ones(len(order), bool)
    last[:-1] = False
    for part in parts:
        told = part[order]
        last[:-1] |= told[:-1] != told[1:]
    return rows.take(pa.array(order[last])).combine_chunks()


def _settled(letters: pa.Table, marks: Mapping[str, list[pa.Array]]) -> pa.ChunkedArray:
    out = pa.chunked_array([pa.array(np.zeros(letters.num_rows, bool))])
    for name, arrays in marks.items():
        if arrays:
            marked = pc.is_in(letters["field"], value_set=pa.concat_arrays(arrays))
            out = pc.or_(out, pc.and_(marked, pc.equal(letters["destination"], name)))
    return out
