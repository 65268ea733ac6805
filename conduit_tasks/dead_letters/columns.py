"""Look at all letters of a pipeline, as columns, for lists, counts and issues: no record, no row that is not shown, no
file that was read before; bounded over all pipelines.

A look reads only the files that were not there, or were another file, at the last one; the first one of a process finds
most of them in what is kept for it (`kept`). Of 100,000 letters it holds some
30 MB; the looks of all pipelines together hold `MOST` bytes, those that were not asked for longest go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conduit_tasks.dead_letters import kept
from conduit_tasks.dead_letters.issues import Groups, Issue, issue_ids
from conduit_tasks.dead_letters.marks import Marks
from conduit_tasks.dead_letters.store import KEY, DeadLetterStore, as_field, fields
from conduit_tasks.record.record import json_data
from conduit_tasks.record.schema import KEY_STRUCTURED
from conduit_tasks.spool.store import Stamp

MOST = 256 << 20
"""Bytes that the looks of all pipelines hold together; the last one stays also if it is larger."""
CAUSES = 100
"""Issues of a pipeline that are held, of some 4 KB each; more of them are found anew at each look."""
AGAIN = 5
"""Looks at a store whose files are being removed, one after the other."""
_READ = [*KEY, "id", "node", "error", "error_class", "attempts", "at", "exact.key", "exact.shape"]
SCHEMA = pa.schema(
    [
        *((name, pa.int32() if name == "ord" else pa.int64()) for name in KEY),
        *((name, pa.string()) for name in ("id", "node", "error", "error_class")),
        ("attempts", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("key", pa.string()),
        ("structured", pa.bool_()),
        ("destination", pa.string()),
        ("field", pa.string()),
        ("issue", pa.string()),
        ("file", pa.int64()),
    ]
)
"""Columns of a look. `key`: the record's key as text (`structured`: as JSON). `field`: the letter's key as the broker's
index has it. `file`: number of the file that holds it."""


@dataclass(frozen=True)
class Look:
    """All letters of a pipeline, each once, in order of (destination, epoch, micro-batch, seq, ord). `settled`: those
    that a redrive has settled; `paths`: number of a file → its path."""

    letters: pa.Table
    settled: pa.ChunkedArray
    paths: Mapping[int, str]

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
    """Letters of one pipeline, held from look to look. `destination`: only its letters. Safe to use from several
    threads: one reads, the others wait. Raises ConduitError, naming the file or folder."""

    root: str
    pipeline: str
    destination: str | None = None
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

    def look(self) -> Look:
        """Returns the letters as they are now."""
        with self._lock:
            for left in range(AGAIN - 1, -1, -1):
                try:
                    return self._looked()
                except FileNotFoundError:  # it was removed, or written anew, between the two
                    if not left:
                        raise
        raise AssertionError

    def _looked(self) -> Look:
        store, marks = DeadLetterStore(self.root, self.pipeline), Marks(self.root, self.pipeline)
        names = store.destinations() if self.destination is None else [self.destination]
        stamps = {name: store.stamps(name) for name in names}
        marked = {name: marks.stamps(name) for name in names}
        there = {path: stamp for found in stamps.values() for path, stamp in found.items()}
        if self._look is None or there != self._stamps:
            self._read(store, stamps, there)
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
            self._look = Look(letters, _settled(letters, arrays), dict(self._paths))
            issues = min(CAUSES, len(pc.unique(letters["issue"])))
            self.bytes = int(self._rows.nbytes + letters.nbytes * 2) + issues * 4_096
        return self._look

    def _read(self, store: DeadLetterStore, stamps: Mapping[str, Mapping[str, Stamp]], there: dict[str, Stamp]) -> None:
        """Reads the files that are new, and forgets those that are gone."""
        if not self._paths and kept.worth(there):
            self._restore()
        same = {number for number, path in self._paths.items() if there.get(path, ()) == self._stamps[path]}
        known = {self._paths[number] for number in same}
        new = [(name, path) for name, found in stamps.items() for path in sorted(found) if path not in known]
        tables = [store.table(path, _READ) for _, path in new]
        # From here on nothing fails that leaves one half done.
        rows = self._rows
        if len(same) < len(self._paths):
            rows = rows.filter(pc.is_in(rows["file"], pa.array(sorted(same), pa.int64())))
        numbers = range(self._number, self._number + len(new))
        if new:
            counts = [table.num_rows for table in tables]
            made = _derived(
                pa.concat_tables(tables),
                pa.array(np.repeat(np.array([name for name, _ in new], object), counts), pa.string()),
                pa.array(np.repeat(np.array(numbers, np.int64), counts)),
            )
            rows = pa.concat_tables([rows, made]).combine_chunks()
        self._rows, self._number, self._stamps = rows, self._number + len(new), there
        self._paths = {n: path for n, path in self._paths.items() if n in same}
        self._paths |= {number: path for number, (_, path) in zip(numbers, new)}
        if self.destination is None:
            self._keep()

    def _restore(self) -> None:
        """Begins with what is kept, as if it had been the last look."""
        if (found := kept.load(self.root, self.pipeline, SCHEMA)) is not None:
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


def look(root: str, pipeline: str) -> Look:
    """Returns the letters of a pipeline as they are now, for those who ask again and again."""
    global _total  # noqa: PLW0603 - what belongs to `_kept`
    key = (root, pipeline)
    with _lock:
        if (columns := _kept.get(key)) is None:
            columns = _kept[key] = Columns(root, pipeline)
        _kept.move_to_end(key)
    found = columns.look()
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


def _derived(read: pa.Table, destinations: pa.Array, numbers: pa.Array) -> pa.Table:
    """Returns the rows of files with the columns that are found out once for each letter."""
    keys, shapes = (pc.struct_field(read["exact"], name) for name in ("key", "shape"))
    structured = pc.not_equal(pc.bit_wise_and(shapes, pa.scalar(KEY_STRUCTURED, pa.int8())), 0)
    said = (read[name].to_pylist() for name in ("node", "error_class", "error"))
    made: dict[str, Any] = {
        "key": _texts(keys, structured),
        "structured": structured,
        "destination": destinations,
        "field": fields(read),
        "issue": pa.array(issue_ids(*said), pa.string()),
        "file": numbers,
    }
    columns = [made[name] if name in made else read[name] for name in SCHEMA.names]
    return pa.table(columns, names=SCHEMA.names).cast(SCHEMA)


def _texts(keys: pa.ChunkedArray, structured: pa.ChunkedArray) -> Any:
    """Returns keys as text: a raw one that is no text in base64."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        both = zip(keys.to_pylist(), structured.to_pylist())
        return pa.array([k.decode() if k is not None and is_json else json_data(k) for k, is_json in both], pa.string())
