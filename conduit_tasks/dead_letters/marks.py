"""Marks of redriven dead letters, in the store itself: the letter, the outcome, the time and the operator (X2).

```
<root>/<pipeline>/_redriven/destination=<id>/<epoch>-<hash>.parquet
```

A letter's own file never changes. Writing the same marks again replaces them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.broker.redrive import Settled
from conduit_tasks.dead_letters.store import Key, digest, write_table
from conduit_tasks.errors import ConduitError
from conduit_tasks.spool.store import Stamp, open_store

FOLDER = "_redriven"

SCHEMA = pa.schema(
    [
        pa.field("epoch", pa.int64()),
        pa.field("micro_batch", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("ord", pa.int64()),
        pa.field("outcome", pa.string()),
        pa.field("redrive", pa.int64()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("by", pa.string()),
    ]
)
"""Columns of a mark. The first four identify the letter. `redrive`: the epoch of the redrive."""


@dataclass(frozen=True)
class Mark:
    """Result of a redrive for one letter. `outcome`: `redriven` or `dead again`."""

    outcome: str
    redrive: int
    at: datetime
    by: str


class Marks:
    """The marks of a pipeline's dead letters. Raises ConduitError naming the file or folder."""

    def __init__(self, root: str, pipeline: str) -> None:
        self._root, self._base = root, f"{pipeline}/{FOLDER}"
        self._store = open_store(root)

    def write(self, destination: str, settled: Sequence[Settled]) -> None:
        """Writes marks, durable on return."""
        if not settled:
            return
        rows = [
            dict(zip(SCHEMA.names, (*s.key, s.outcome, s.epoch, datetime.fromtimestamp(s.at, UTC), s.by)))
            for s in settled
        ]
        name = f"{settled[0].epoch:010d}-{digest([s.key for s in settled])}"
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        write_table(self._store, self._root, f"{self._base}/destination={destination}/{name}.parquet", table)

    def remove(self, destination: str, keys: Collection[Key]) -> None:
        """Removes the marks of letters that are gone."""
        folder = f"{self._base}/destination={destination}"
        for path in self._paths(folder):
            with self._store.open(path) as file:
                table = pq.ParquetFile(file).read()
            held = [tuple(row.values()) for row in table.select(SCHEMA.names[:4]).to_pylist()]
            kept = [key not in keys for key in held]
            if all(kept):
                continue
            if any(kept):
                left = digest([key for key, keep in zip(held, kept) if keep])
                name = path.rpartition("/")[2].partition("-")[0]
                write_table(self._store, self._root, f"{folder}/{name}-{left}.parquet", table.filter(kept))
            self._store.delete(path)

    def stamps(self, destination: str) -> dict[str, Stamp]:
        """Returns path → stamp of the files of marks of a destination."""
        folder = f"{self._base}/destination={destination}"
        found = self._store.stamps(folder)
        return {f"{folder}/{n}": stamp for n, stamp in found.items() if n.endswith(".parquet") and n[0] != "."}

    def keys(self, path: str) -> pa.Table:
        """Returns the keys of the letters that a file marks. Raises FileNotFoundError if it was removed meanwhile."""
        try:
            with self._store.open(path) as file:
                return pq.ParquetFile(file).read(columns=SCHEMA.names[:4], use_threads=False)
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowInvalid) as error:
            raise self._broken(path, error) from error

    def read(self, destination: str) -> dict[Key, Mark]:
        """Returns the newest mark of each letter."""
        out: dict[Key, Mark] = {}
        for path in self._paths(f"{self._base}/destination={destination}"):
            try:
                with self._store.open(path) as file:
                    rows = pq.ParquetFile(file).read().to_pylist()
            except (OSError, pa.ArrowInvalid) as error:
                raise self._broken(path, error) from error
            for row in rows:
                key = (row["epoch"], row["micro_batch"], row["seq"], row["ord"])
                mark = Mark(row["outcome"], row["redrive"], row["at"], row["by"])
                if key not in out or mark.redrive >= out[key].redrive:
                    out[key] = mark
        return out

    def _broken(self, path: str, error: Exception) -> ConduitError:
        return ConduitError(f"{self._root}/{path} cannot be read ({error}); remove it")

    def _paths(self, folder: str) -> list[str]:
        names = self._store.names(folder)
        return [f"{folder}/{n}" for n, is_folder in names if n.endswith(".parquet") and n[0] != "." and not is_folder]
