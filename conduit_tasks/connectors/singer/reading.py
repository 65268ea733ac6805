"""One run of a tap: records of what it says, their positions and deletes, and how far its STATEs say that it came."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from conduit_tasks.connectors.singer import messages
from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons

if TYPE_CHECKING:
    import pyarrow as pa

    from conduit_tasks.connectors.singer.process import Tap
    from conduit_tasks.connectors.singer.schema import Registered
    from conduit_tasks.record.record import Record

STATE_BYTES = 256 << 10
"""Bytes of a STATE at most: Redis keeps it."""
NOT_RESUMED = frozenset({"progress_markers", "currently_syncing"})
"""Keys of a STATE that say how far a stream is, or which one it is, and from which no stream goes on."""
BATCH, BATCH_BYTES = 5_000, 8 << 20
"""Records and bytes of a batch at most."""
DELETED = "_sdc_deleted_at"
"""Property by which taps of databases say that a row is deleted."""


class Reading:
    """Progress of one run of a tap. `state`: its last STATE; `moved`: it is another one than that the tap
    was started with; `full`: as much was read as a micro-batch may have, up to a STATE."""

    def __init__(self, begun: Any, cut: Sequence[str], records: int | None, size: int | None, *, content: bool) -> None:
        self.state, self.moved, self.full = begun, False, False
        self._begun, self._cut, self._content = mark(begun), cut, content
        self._most, self._most_bytes = records, size
        self._from = _hash(jsons.dumps(begun, sort_keys=True))
        self._count = self._size = self._held_bytes = 0
        self._held: list[Record] = []
        self._of: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {}

    def batches(self, tap: Tap, registered: Registered | None) -> Iterator[pa.RecordBatch]:
        """Yields the records to the end of the tap, or until it is full; the last ones are in `rest`. Raises
        SourceError."""
        for line in tap.lines():
            try:
                said = messages.parse(line)
            except SourceError as error:
                # What is quoted may be anything.
                raise SourceError(tap.mask(str(error))) from None
            if isinstance(said, messages.Record):
                self._held.append(self._record(said))
                self._count += 1
                self._size += len(line)
                self._held_bytes += len(line)
                if len(self._held) >= BATCH or self._held_bytes >= BATCH_BYTES:
                    yield from self.rest()
            elif isinstance(said, messages.State):
                self._moves(said.value, len(line))
                if self.full:
                    return
            elif isinstance(said, messages.Schema):
                meta = registered.register(said.stream, said.schema) if registered is not None else {}
                self._of[said.stream] = said.keys, {"opencdc.collection": said.stream, **meta}

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yields what is held."""
        import pyarrow as pa

        from conduit_tasks.record.schema import READ_SCHEMA, record_columns

        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            yield pa.RecordBatch.from_arrays(record_columns(held), schema=READ_SCHEMA)

    def _moves(self, state: Any, size: int) -> None:
        if size > STATE_BYTES:
            raise SourceError(f"singer: the tap printed a STATE of {size} bytes, {STATE_BYTES} is the most")
        at = mark(state)
        self.state, self.moved = state, at != self._begun
        # A tap that has not got on, or comes back to where it was, would be started for the same records for ever.
        enough = (self._most is not None and self._count >= self._most) or (
            self._most_bytes is not None and self._size >= self._most_bytes
        )
        self.full = enough and self.moved and at not in self._cut

    def _record(self, said: messages.Record) -> Record:
        from conduit_tasks.record.record import Record

        if said.stream not in self._of:
            raise SourceError(f"singer: the tap printed a RECORD of {said.stream} before its SCHEMA")
        keys, metadata = self._of[said.stream]
        row = said.record
        if missing := [key for key in keys if key not in row]:
            raise SourceError(
                f"singer: the tap printed a RECORD of {said.stream} without its key property {', '.join(missing)}"
            )
        if said.at and (at := _nanoseconds(said.at)):
            metadata = {**metadata, "opencdc.createdAt": at}
        key = jsons.dumps({name: row[name] for name in keys}) if keys else None
        named = key or f"{self._from}:{self._count}".encode()
        if self._content:
            named += f":{_hash(jsons.dumps(row, sort_keys=True))}".encode()
        deleted = row.get(DELETED) is not None
        return Record(
            f"{said.stream}:".encode() + named,
            "delete" if deleted else "create",
            metadata,
            key,
            row if deleted else None,
            None if deleted else row,
        )


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def mark(state: Any) -> str:
    """Returns a hash of where a STATE goes on; what it says of a stream that begins again all the same is left out."""
    return _hash(jsons.dumps(_without(state), sort_keys=True))[:8]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without(part) for key, part in value.items() if key not in NOT_RESUMED}
    return [_without(part) for part in value] if isinstance(value, list) else value


def _nanoseconds(text: str) -> str:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return ""
    return "" if at.tzinfo is None else f"{int(at.timestamp() * 1_000_000)}000"
