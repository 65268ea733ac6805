"""The project's own store of dead letters: Parquet files that any tool can query (SEMANTICS C14).

```
<root>/<pipeline>/destination=<id>/<micro-batch>-<hash>.parquet
```

`_pipeline` stands for the id if a record failed before the fan-out. A file is named after the letters that it holds, so
storing the same ones again replaces it; a letter that is found in several files counts once, the newest one. What
looks need of it stands in front of its footer (`extract`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.dead_letters.extract import KEY, derived, fields, read_extract, with_extract
from conduit_tasks.dead_letters.portions import portions
from conduit_tasks.errors import ConduitError
from conduit_tasks.record import jsons
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import READ_SCHEMA, record_columns, to_records
from conduit_tasks.spool.store import Stamp, Store, open_store, put

Rows = list[dict[str, Any]]
Key = tuple[int, int, int, int]
"""Key of a letter: (epoch, micro-batch, seq, ord)."""
PARKED = "_parked"
"""Folder of the records that wait behind dead letters."""
COLUMNS = "_columns"
"""Folder of what looks have found in the files (`kept`)."""

BEFORE_FAN_OUT = "_pipeline"
"""Name used in place of a destination if a source or pipeline processor failed the record."""

UNSENT = "not sent yet"
"""Name used in place of a destination's processor: a redrive has brought the record past the fan-out, and not sent
it."""

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("micro_batch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ord", pa.int32()),
        pa.field("epoch", pa.int64()),
        pa.field("index", pa.int64()),
        pa.field("node", pa.string()),
        pa.field("error", pa.string()),
        pa.field("error_class", pa.string()),
        pa.field("attempts", pa.int32()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("connector", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("position", pa.binary()),
        pa.field("record", pa.string()),
        pa.field("exact", pa.struct([*READ_SCHEMA, pa.field("shared", pa.map_(pa.string(), pa.string()))])),
    ]
)
"""Columns of a letter. `record`: OpenCDC JSON, for people and queries. `exact`: the record as the spool has it, for
sending it again, with the metadata that it shared with its slice."""

LISTED = [name for name in SCHEMA.names if name != "exact"]
"""Columns that people look at."""


class DeadLetterStore:
    """Letters of one destination (None: before the fan-out) or, for reading, of a whole pipeline.

    `parked`: the store holds not letters but the records that wait behind them (X4), in `<root>/<pipeline>/_parked/`,
    which tools that look for tables skip. Raises ConduitError naming the folder if it cannot be read or written.
    """

    def __init__(self, root: str, pipeline: str, destination: str | None = None, *, parked: bool = False) -> None:
        self.root, self.pipeline = root, pipeline
        self._base = f"{pipeline}/{PARKED}" if parked else pipeline
        self._folder = f"{self._base}/destination={destination or BEFORE_FAN_OUT}"
        self._store: Store = open_store(root)

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Stores letters, durable on return (invariant 8). A file is read into memory as a whole: none grows beyond
        what may be held (C13), unless a single record does."""
        for part in portions(letters):
            keys = sorted(letter.key for letter in part)
            path = f"{self._folder}/{part[0].micro_batch:010d}-{digest(keys)}.parquet"
            table = letters_table(part)
            write_table(self._store, self.root, path, table, derived(table))

    def list(self, destination: str | None = None, error_class: str | None = None, limit: int | None = None) -> Rows:
        """Returns rows in order of (destination, epoch, micro-batch, seq, ord), each letter once: the columns of SCHEMA
        except `exact`, with `record` parsed and `destination` added. `destination` may be `_pipeline`."""
        out = [row for row in self.rows(destination) if error_class is None or row["error_class"] == error_class]
        for row in out[:limit]:
            row["record"] = jsons.exact(row["record"])
        return out[:limit]

    def letters(self, destination: str | None = None) -> Iterator[DeadLetter]:
        """Yields the same letters as they were stored, records exact to the byte."""
        yield from self.load(self.rows(destination))

    def rows(self, destination: str | None = None, columns: Sequence[str] = LISTED) -> Rows:
        """Returns rows as `list` does, but `record` is JSON text: `columns` and the four of a letter's key, with
        `destination` and the `file` that holds it."""
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        wanted = list(dict.fromkeys([*KEY, "at", *columns]))
        for folder, path in self._files(destination):
            for row in self._read(path, wanted):
                row["destination"], row["file"] = folder, path
                key = (folder, *row_key(row))
                if key not in newest or newest[key]["at"] <= row["at"]:
                    newest[key] = row
        return [newest[key] for key in sorted(newest)]

    def live(self, destination: str, micro_batch: int, seq: int, ordinal: int) -> dict[str, Any] | None:
        """Returns the row of a letter of a live delivery: its key, `at`, and the `file` that holds it. Files of other
        micro-batches are not read."""
        found: dict[str, Any] | None = None
        for _, path in self._files(destination, micro_batch):
            read = self._still(path, [*KEY, "at"])
            mine = read.filter(pc.equal(fields(read), as_field((0, micro_batch, seq, ordinal))))
            for row in mine.to_pylist():
                if found is None or found["at"] <= row["at"]:
                    found = {**row, "file": path}
        return found

    def nacked(self, destination: str, micro_batch: int) -> set[int]:
        """Returns the seqs of a micro-batch for which this destination (or `_pipeline`) has letters of its live
        delivery; letters of a redrive do not count."""
        found = set()
        for _, path in self._files(destination, micro_batch):
            found |= {r["seq"] for r in self._read(path, KEY) if r["micro_batch"] == micro_batch and not r["epoch"]}
        return found

    def load(self, rows: Sequence[dict[str, Any]]) -> Iterator[DeadLetter]:
        """Yields the letters of these rows, in their order, records exact to the byte. Of a row are needed the four of
        a letter's key, and `file`."""
        for row in self.whole(rows, SCHEMA.names):
            yield self._letter(row)

    def whole(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = LISTED) -> Iterator[dict[str, Any]]:
        """Yields these rows with more columns, in their order. A file is read when its first letter is due, and of it
        are held the letters that are still to come."""
        wanted = _by_file(rows)
        found: dict[tuple[str, Key], dict[str, Any]] = {}
        for row in rows:
            path, key = row["file"], row_key(row)
            if (path, key) not in found:
                read = self._still(path, list(dict.fromkeys([*KEY, *columns])))
                mine = read.filter(pc.is_in(fields(read), value_set=pa.array(wanted[path], pa.string())))
                del read
                found |= {(path, row_key(each)): each for each in mine.to_pylist()}
            yield {**row, **found.pop((path, key))}

    def sizes(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[int]:
        """Returns the bytes of the records of these rows, as text; the records are not held."""
        found: dict[tuple[str, str], int] = {}
        for path, of in _by_file(rows).items():
            read = self._still(path, [*KEY, "record"])
            sizes = read.append_column("size", pc.binary_length(read["record"])).drop_columns(["record"])
            del read
            mine = sizes.filter(pc.is_in(fields(sizes), value_set=pa.array(of, pa.string())))
            found |= {(path, f): n for f, n in zip(fields(mine).to_pylist(), mine["size"].to_pylist())}
        return [found[row["file"], as_field(row_key(row))] for row in rows]

    def remove(self, destination: str, keys: Collection[Key]) -> None:
        """Removes letters from every file that holds them: the file is written again without them, then the old one is
        deleted."""
        for _, path in self._files(destination):
            try:
                extract = self.extract(path)
            except FileNotFoundError:
                raise self._gone(path) from None
            held = [*zip(*(extract[name].to_pylist() for name in KEY))]
            kept = pa.array([key not in keys for key in held])
            left = sorted(key for key in held if key not in keys)
            if len(left) == len(held):
                continue
            if left:
                table = self._still(path, SCHEMA.names).filter(kept)
                folder, _, name = path.rpartition("/")
                name = f"{name.partition('-')[0]}-{digest(left)}.parquet"
                write_table(self._store, self.root, f"{folder}/{name}", table, extract.filter(kept))
            self._store.delete(path)
        # What is given up for good stands there, too.
        self._store.delete(f"{self._base}/{COLUMNS}")

    def stamps(self, destination: str) -> dict[str, Stamp]:
        """Returns path → stamp of the files of a destination. A file that is stored again replaces the one of the same
        letters, so a path alone does not tell what is in it."""
        folder = f"{self._base}/destination={destination}"
        found = self._store.stamps(folder)
        return {f"{folder}/{name}": stamp for name, stamp in found.items() if _is_letters(name)}

    def table(self, path: str, columns: Sequence[str]) -> pa.Table:
        """Returns columns of a file. Raises FileNotFoundError if it was removed meanwhile."""
        with self._open(path) as file:
            # These files are small, or few: threads cost more than they save.
            return pq.ParquetFile(file).read(columns=[*columns], use_threads=False)

    def extract(self, path: str) -> pa.RecordBatch:
        """Returns what looks need of a file's letters (EXTRACT). Raises FileNotFoundError if it was removed
        meanwhile."""
        with self._open(path) as file:
            return read_extract(file)

    def destinations(self) -> Sequence[str]:
        """Returns the destinations that have letters, `_pipeline` among them."""
        names = self._store.names(self._base)
        return [n.partition("=")[2] for n, is_folder in names if is_folder and n.startswith("destination=")]

    def _letter(self, row: dict[str, Any]) -> DeadLetter:
        shared = dict(row["exact"].pop("shared") or ())
        origin = Origin(self.pipeline, row["connector"], row["partition"], shared)
        batch = pa.RecordBatch.from_pylist([row["exact"]], schema=READ_SCHEMA)
        record = to_records(batch, origin)[0]
        record.ordinal = row["ord"]
        return DeadLetter(
            row["micro_batch"],
            row["seq"],
            record,
            row["node"],
            row["error"],
            row["error_class"],
            row["attempts"],
            row["epoch"],
            row["at"].timestamp(),
            row["index"],
        )

    def _files(self, destination: str | None, live: int | None = None) -> Iterator[tuple[str, str]]:
        """Yields (destination, path) of every file, or of those with live letters of a micro-batch: they are stored
        by it."""
        start = "" if live is None else f"{live:010d}-"
        for each in self.destinations() if destination is None else [destination]:
            folder = f"{self._base}/destination={each}"
            for name, is_folder in self._store.names(folder):
                if not is_folder and _is_letters(name) and name.startswith(start):
                    yield each, f"{folder}/{name}"

    def _read(self, path: str, columns: Sequence[str]) -> Rows:
        return self._still(path, columns).to_pylist()

    def _still(self, path: str, columns: Sequence[str]) -> pa.Table:
        try:
            return self.table(path, columns)
        except FileNotFoundError:
            raise self._gone(path) from None

    def _gone(self, path: str) -> ConduitError:
        return ConduitError(
            f"{self.root}/{path} was removed after it had been found, as by `conduit dead-letters purge`: call "
            "this again"
        )

    def _broken(self, path: str, error: Exception) -> ConduitError:
        return ConduitError(f"{self.root}/{path} is no file of dead letters ({error}); restore or remove it")

    @contextmanager
    def _open(self, path: str) -> Iterator[pa.NativeFile]:
        try:
            with self._store.open(path) as file:
                yield file
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowInvalid) as error:
            raise self._broken(path, error) from error


def _by_file(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Returns file → the keys of these rows that it holds, as the broker's index has them."""
    wanted: dict[str, list[str]] = {}
    for row in rows:
        wanted.setdefault(row["file"], []).append(as_field(row_key(row)))
    return wanted


def _is_letters(name: str) -> bool:
    return not name.startswith((".", "_")) and name.endswith(".parquet")


def row_key(row: Mapping[str, Any]) -> Key:
    """Returns (epoch, micro-batch, seq, ord), as `DeadLetter.key`."""
    return (row["epoch"], row["micro_batch"], row["seq"], row["ord"])


def as_field(key: Key) -> str:
    """Returns the same for one key."""
    return "-".join(map(str, key))


def digest(keys: Sequence[Any]) -> str:
    """Returns a name for a file by its content, so that writing the same again replaces it."""
    return hashlib.blake2b(repr(list(keys)).encode(), digest_size=8).hexdigest()


def write_table(store: Store, root: str, path: str, table: pa.Table, extract: pa.RecordBatch | None = None) -> None:
    """Writes a Parquet file, durable on return. `extract`: of a file of letters. Raises ConduitError."""
    # Written in one piece: Parquet makes some twenty writes of a few bytes each.
    pq.write_table(table, written := pa.BufferOutputStream(), compression="zstd")
    data = written.getvalue()
    try:
        put(store, path, data if extract is None else with_extract(data, extract))
    except OSError as error:
        raise ConduitError(
            f"dead letters cannot be written to {root}/{path.rpartition('/')[0]}: {error}; make room or fix "
            "CONDUIT_DEAD_LETTERS"
        ) from error


def letters_table(letters: Sequence[DeadLetter]) -> pa.Table:
    """Returns the letters as a table. Error strings go through UTF-8 with replacement: they may quote bytes of the
    record."""
    records = [letter.record for letter in letters]
    shared = pa.array([list(r.origin.metadata.items()) or None for r in records], SCHEMA.field("exact").type[-1].type)
    exact = pa.StructArray.from_arrays([*record_columns(records), shared], fields=list(SCHEMA.field("exact").type))
    columns = {
        "id": [r.id for r in records],
        "micro_batch": [letter.micro_batch for letter in letters],
        "seq": [letter.seq for letter in letters],
        "ord": [r.ordinal for r in records],
        "epoch": [letter.epoch for letter in letters],
        "index": [letter.index for letter in letters],
        "node": [letter.node for letter in letters],
        "error": [letter.error.encode(errors="replace").decode() for letter in letters],
        "error_class": [letter.error_class for letter in letters],
        "attempts": [letter.attempts for letter in letters],
        "at": [int(letter.at * 1e6) for letter in letters],
        "connector": [r.origin.connector for r in records],
        "partition": [r.origin.partition for r in records],
        "position": [r.position for r in records],
        "record": [jsons.dumps(r.to_opencdc()).decode() for r in records],
    }
    arrays = [pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()]
    return pa.Table.from_arrays([*arrays, exact], schema=SCHEMA)
