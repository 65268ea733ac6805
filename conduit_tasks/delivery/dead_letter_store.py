"""The project's own store of dead letters: Parquet files that any tool can query (SEMANTICS C14).

```
<root>/<pipeline>/destination=<id>/<micro-batch>-<hash>.parquet
```

`_pipeline` stands for the id where a record failed before the fan-out. A file is named by the letters that it holds,
so storing the same ones again replaces it; a letter that is found in several files counts once, the newest of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.delivery.port import DeadLetter
from conduit_tasks.errors import ConduitError
from conduit_tasks.record.record import Origin
from conduit_tasks.record.schema import READ_SCHEMA, record_columns, to_records
from conduit_tasks.spool.store import Store, open_store

Rows = list[dict[str, Any]]

BEFORE_FAN_OUT = "_pipeline"
"""Stands for a destination where a source or pipeline processor failed the record."""

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
"""`record`: OpenCDC JSON, for people and queries. `exact`: the record as the spool has it, for sending it again, with
the metadata that it shared with its slice."""


class DeadLetterStore:
    """Letters of one destination (None: before the fan-out) or, for reading, of a whole pipeline.

    Raises ConduitError naming the folder where it cannot be read or written.
    """

    def __init__(self, root: str, pipeline: str, destination: str | None = None) -> None:
        self._root, self._pipeline = root, pipeline
        self._folder = f"{pipeline}/destination={destination or BEFORE_FAN_OUT}"
        self._store: Store = open_store(root)

    def store(self, letters: Sequence[DeadLetter]) -> None:
        """Durable on return (invariant 8)."""
        if not letters:
            return
        keys = sorted(letter.key for letter in letters)
        name = f"{letters[0].micro_batch:010d}-{hashlib.blake2b(repr(keys).encode(), digest_size=8).hexdigest()}"
        try:
            sink = self._store.create(f"{self._folder}/{name}.parquet")
            try:
                pq.write_table(_table(letters), sink, compression="zstd")
                sink.commit()
            except BaseException:
                sink.abort()
                raise
        except OSError as error:
            raise ConduitError(
                f"dead letters cannot be written to {self._root}/{self._folder}: {error}; make room or mend "
                "CONDUIT_DEAD_LETTERS"
            ) from error

    def list(self, destination: str | None = None, error_class: str | None = None, limit: int | None = None) -> Rows:
        """Rows in order of (destination, epoch, micro-batch, seq, ord), a letter once: the columns of SCHEMA but for
        `exact`, with `record` parsed and `destination` added. `destination` may be `_pipeline`."""
        out = [
            row
            for row in self._rows(destination, [n for n in SCHEMA.names if n != "exact"])
            if error_class is None or row["error_class"] == error_class
        ]
        for row in out[:limit]:
            row["record"] = orjson.loads(row["record"])
        return out[:limit]

    def letters(self, destination: str | None = None) -> Iterator[DeadLetter]:
        """The same as they were stored, records exact to the byte."""
        for row in self._rows(destination, SCHEMA.names):
            shared = dict(row["exact"].pop("shared") or ())
            origin = Origin(self._pipeline, row["connector"], row["partition"], shared)
            batch = pa.RecordBatch.from_pylist([row["exact"]], schema=READ_SCHEMA)
            record = to_records(batch, origin)[0]
            record.ordinal = row["ord"]
            yield DeadLetter(
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

    def _rows(self, destination: str | None, columns: Sequence[str]) -> Rows:
        newest: dict[tuple[Any, ...], dict[str, Any]] = {}
        for folder in self._folders(destination):
            for name, is_folder in self._store.names(f"{self._pipeline}/{folder}"):
                if is_folder or name.startswith((".", "_")) or not name.endswith(".parquet"):
                    continue
                for row in self._read(f"{self._pipeline}/{folder}/{name}", columns):
                    row["destination"] = folder.partition("=")[2]
                    key = tuple(row[c] for c in ("destination", "epoch", "micro_batch", "seq", "ord"))
                    if key not in newest or newest[key]["at"] <= row["at"]:
                        newest[key] = row
        return [newest[key] for key in sorted(newest)]

    def _folders(self, destination: str | None) -> Sequence[str]:
        if destination is not None:
            return [f"destination={destination}"]
        return [n for n, is_folder in self._store.names(self._pipeline) if is_folder and n.startswith("destination=")]

    def _read(self, path: str, columns: Sequence[str]) -> Rows:
        try:
            with self._store.open(path) as file:
                return pq.ParquetFile(file).read(columns=[*columns]).to_pylist()
        except (OSError, pa.ArrowInvalid) as error:
            raise ConduitError(
                f"{self._root}/{path} is no file of dead letters ({error}); restore or remove it"
            ) from error


def _table(letters: Sequence[DeadLetter]) -> pa.Table:
    """Strings go through UTF-8 with replacement: an error text may quote bytes of the record."""
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
        "record": [orjson.dumps(r.to_opencdc(), option=orjson.OPT_NON_STR_KEYS).decode() for r in records],
    }
    arrays = [pa.array(values, SCHEMA.field(name).type) for name, values in columns.items()]
    return pa.Table.from_arrays([*arrays, exact], schema=SCHEMA)
