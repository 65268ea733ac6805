"""Records of a snapshot's rows and of a slot's changes: key, position, metadata; changes that are not those that `plan`
saw are an error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from conduit_tasks.connectors import snapshot
from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.batches import Sized
from conduit_tasks.connectors.postgres.client import lsn_number, lsn_text
from conduit_tasks.connectors.postgres.pgoutput import Begin, Change, Commit, Decoder, Relation, Truncate
from conduit_tasks.connectors.postgres.slot import Slot
from conduit_tasks.connectors.postgres.tables import Table, collection, described, rows_after
from conduit_tasks.connectors.postgres.values import json_row
from conduit_tasks.connectors.tables import POSTGRES_EMPTIED, UNCHANGED
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record.record import Record


class Chunk(snapshot.Chunk):
    """Rows of a table of PostgreSQL."""

    def _table(
        self, connection: Any, name: str, after: Sequence[str] | None, most: int | None
    ) -> tuple[str, tuple[str, ...], Iterator[snapshot.Row]]:
        table = described(connection, name)
        if not table.key:
            raise ConfigError(
                f"postgres: {name} has no primary key to read it by; add one, or leave it out of 'tables' "
                "(snapshotMode: never reads changes only)"
            )
        return table.collection, table.key, self._rows(connection, table, after, most)

    @staticmethod
    def _rows(connection: Any, table: Table, after: Sequence[str] | None, most: int | None) -> Iterator[snapshot.Row]:
        for row in rows_after(connection, table, after, most):
            texts = dict(zip(table.columns, row, strict=True))
            size = sum(len(text) for text in row if text is not None)
            yield json_row(texts, table.columns), [texts[column] for column in table.key], size


def changes(connection: Any, slot: Slot, slice: Slice) -> Iterator[Sized]:
    """Yields exactly the changes of a slice. Raises SourceError if they are not those that `plan` saw."""
    if slice.hint is None:
        return
    start, end = lsn_number(slice.start["lsn"]), lsn_number(slice.end["lsn"])
    had, last = slice.start["skip"], slice.end["skip"]
    decoder, keys = Decoder(), _Keys(connection)
    begin, n, count = Begin(0, 0, 0), 0, 0
    for (data,) in slot.peek(connection, "data", slice.hint["upto"]):
        message = decoder.decode(bytes(data))
        if isinstance(message, Begin):
            begin, n = message, 0
        elif isinstance(message, Commit):
            had = 0 if message.lsn >= start else had
        elif isinstance(message, Change | Truncate) and begin.lsn >= start:
            n += 1
            if n > had and (begin.lsn < end or n <= last):
                for record in _records(message, begin, n, keys):
                    count += 1
                    yield record, len(data)
    if count != slice.records:
        raise SourceError(
            f"postgres: replication slot {slot.name} gave {count} changes from {slice.start['lsn']} to "
            f"{slice.end['lsn']}, where it had {slice.records} before: it was created again or read by something else. "
            "Begin again under a new connector id, which takes a snapshot first"
        )


class _Keys:
    """Key of each table: its replica identity, or its primary key if the identity is all columns."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._known: dict[Relation, tuple[str, ...]] = {}

    def of(self, relation: Relation) -> tuple[str, ...]:
        if relation not in self._known:
            key = tuple(c.name for c in relation.columns if c.key)
            if relation.identity == "f":
                key = self._primary(relation)
            self._known[relation] = key
        return self._known[relation]

    def _primary(self, relation: Relation) -> tuple[str, ...]:
        try:
            key = described(self._connection, f"{relation.schema}.{relation.name}").key
        except ConfigError:
            # The table was dropped or renamed since.
            return ()
        return key if set(key) <= {c.name for c in relation.columns} else ()


def _records(message: Change | Truncate, begin: Begin, n: int, keys: _Keys) -> Iterator[Record]:
    position = f"{lsn_text(begin.lsn)}/{n}"
    created = {"opencdc.createdAt": str(begin.committed * 1000)}
    if isinstance(message, Truncate):
        for number, relation in enumerate(message.relations):
            of = collection(relation.schema, relation.name)
            metadata = {**created, "opencdc.collection": of, POSTGRES_EMPTIED: "true"}
            yield Record(f"{position}.{number}".encode(), "delete", metadata)
        return
    relation = message.relation
    oids = {column.name: column.oid for column in relation.columns}
    metadata = {**created, "opencdc.collection": collection(relation.schema, relation.name)}
    if message.unchanged:
        metadata[UNCHANGED] = ",".join(message.unchanged)
    before = None if message.old is None else json_row(message.old, oids)
    after = None if message.new is None else json_row(message.new, oids)
    row = after if after is not None else before
    key = {name: (row or {}).get(name) for name in keys.of(relation)} or None
    operation = {"insert": "create", "update": "update", "delete": "delete"}[message.kind]
    yield Record(position.encode(), operation, metadata, key, before, after)
