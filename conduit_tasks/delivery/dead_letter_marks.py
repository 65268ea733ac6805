"""What became of dead letters that were sent again, in the store itself: which, how it ended, when, and by whom (X2).

```
<root>/<pipeline>/_redriven/destination=<id>/<epoch>-<hash>.parquet
```

A letter's own file never changes. Writing the same marks again replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from conduit_tasks.broker.redrive import Settled
from conduit_tasks.delivery.dead_letter_store import Key, digest, write_table
from conduit_tasks.errors import ConduitError
from conduit_tasks.spool.store import open_store

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
"""The first four name the letter. `redrive`: the epoch of the redrive."""


@dataclass(frozen=True)
class Mark:
    """`outcome`: `redriven` or `dead again`."""

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
        """Durable on return."""
        if not settled:
            return
        rows = [
            dict(zip(SCHEMA.names, (*s.key, s.outcome, s.epoch, datetime.fromtimestamp(s.at, UTC), s.by)))
            for s in settled
        ]
        name = f"{settled[0].epoch:010d}-{digest([s.key for s in settled])}"
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        write_table(self._store, self._root, f"{self._base}/destination={destination}/{name}.parquet", table)

    def read(self, destination: str) -> dict[Key, Mark]:
        """By letter, the newest."""
        out: dict[Key, Mark] = {}
        folder = f"{self._base}/destination={destination}"
        for name, is_folder in self._store.names(folder):
            if is_folder or not name.endswith(".parquet") or name.startswith("."):
                continue
            try:
                with self._store.open(f"{folder}/{name}") as file:
                    rows = pq.ParquetFile(file).read().to_pylist()
            except (OSError, pa.ArrowInvalid) as error:
                raise ConduitError(f"{self._root}/{folder}/{name} cannot be read ({error}); remove it") from error
            for row in rows:
                key = (row["epoch"], row["micro_batch"], row["seq"], row["ord"])
                mark = Mark(row["outcome"], row["redrive"], row["at"], row["by"])
                if key not in out or mark.redrive >= out[key].redrive:
                    out[key] = mark
        return out
