"""Snapshot of tables (`postgres`, `mysql`): one table after the other, its rows in the order of the key, within the
limits of a micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.batches import Sized
from conduit_tasks.record.record import Record

Row = tuple[dict[str, Any], list[str], int]
"""Values by column, the texts of the key behind which the next row is, and the size in bytes."""


class Chunk:
    """Rows of the first table that a token still has to read, within the limits of the slice. After reading, `end` is
    the token that follows."""

    def __init__(self, slice: Slice) -> None:
        self._token, self._hint = slice.start, slice.hint
        self.end: Any = None

    def read(self, connection: Any) -> Iterator[Sized]:
        name, *others = self._token["snapshot"]
        most, room = self._hint["records"], self._hint["bytes"]
        count, after, whole = 0, self._token.get("after"), True
        collection, key, rows = self._table(connection, name, after, most)
        for values, after, size in rows:
            position = f"snapshot/{name}/".encode() + orjson.dumps(after)
            metadata = {"opencdc.collection": collection}
            yield Record(position, "snapshot", metadata, {n: values[n] for n in key}, None, values), size
            count += 1
            if room is not None and (room := room - size) <= 0:
                whole = False
                break
        self.end = {k: v for k, v in self._token.items() if k not in ("snapshot", "after")}
        if not whole or count == most:
            self.end.update(snapshot=[name, *others], after=after)
        elif others:
            self.end["snapshot"] = others

    def _table(
        self, connection: Any, name: str, after: Sequence[str] | None, most: int | None
    ) -> tuple[str, tuple[str, ...], Iterator[Row]]:
        """Returns a table's `opencdc.collection`, its key, and its rows behind the key `after` in the order of the key,
        at most `most`. Raises ConfigError."""
        raise NotImplementedError
