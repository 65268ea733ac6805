"""Records of a snapshot's rows and of the log's changes: key, position, metadata, the limits of a slice; refuses tables
that cannot be read in order, or followed."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from conduit_tasks.connectors import snapshot
from conduit_tasks.connectors.base import Slice
from conduit_tasks.connectors.batches import Sized
from conduit_tasks.connectors.mysql.binlog import Emptied, End, Log, Rows
from conduit_tasks.connectors.mysql.charsets import Charsets
from conduit_tasks.connectors.mysql.client import quoted
from conduit_tasks.connectors.mysql.images import Shape, Undecodable, row, shape
from conduit_tasks.connectors.mysql.places import AGAIN, Place, reached
from conduit_tasks.connectors.mysql.tables import BYTES, SHAPES, Column, Table, check_known, collection, described
from conduit_tasks.connectors.mysql.values import json_value, selected
from conduit_tasks.connectors.portion import Portion
from conduit_tasks.connectors.tables import MYSQL_EMPTIED
from conduit_tasks.errors import ConfigError, SourceError
from conduit_tasks.record.record import Record

FETCH = 2_000
"""Rows fetched at a time."""
_NO_KEYS = ("float", "double", "enum", "set", "json", *SHAPES)
"""Types that a key cannot have for a snapshot: the server sorts them otherwise than it compares them with a text."""


class Chunk(snapshot.Chunk):
    """Rows of a table of MySQL."""

    def __init__(self, slice: Slice, database: str) -> None:
        super().__init__(slice)
        self._database = database

    def _table(
        self, connection: Any, name: str, after: Sequence[str] | None, most: int | None
    ) -> tuple[str, tuple[str, ...], Iterator[snapshot.Row]]:
        table = described(connection, *name.split(".", 1))
        check_key(table)
        of = collection(table.schema, table.name, self._database)
        return of, table.key, self._rows(connection, table, after, most)

    @staticmethod
    def _rows(connection: Any, table: Table, after: Sequence[str] | None, most: int | None) -> Iterator[snapshot.Row]:
        columns = [column for column in table.columns.values() if not column.made]
        for cells in _rows_after(connection, table, columns, after, most):
            raw = {column.name: cell for column, cell in zip(columns, cells)}
            values = {column.name: json_value(raw[column.name], column) for column in columns}
            size = sum(len(cell) for cell in cells if cell is not None)
            yield values, [_kept(raw[n], table.columns[n]) for n in table.key], size


def check_changes(connection: Any, table: Table) -> None:
    """Raises ConfigError if the log does not have all changes of a table, or has others."""
    if table.versioned:
        raise ConfigError(
            f"mysql: {table.full} keeps the history of its rows (SYSTEM VERSIONING), and its log has rows of the past; "
            "leave the table out of 'tables'"
        )
    with connection.cursor() as cursor:
        cursor.execute(_CASCADES, [table.schema, table.name])
        found = cursor.fetchall()
    if found:
        raise ConfigError(
            f"mysql: rows of {table.full} are changed by the foreign key {found[0][0]}, and the log does not have "
            "these changes (CASCADE, SET NULL, SET DEFAULT); leave the table out of 'tables', or have the key RESTRICT"
        )


_CASCADES = """
SELECT constraint_name FROM information_schema.referential_constraints WHERE constraint_schema = %s AND table_name = %s
AND (delete_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR update_rule IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
"""


def check_key(table: Table) -> None:
    """Raises ConfigError if a table cannot be read in the order of its primary key."""
    check_known(table)
    bad = [n for n in table.key if table.columns[n].type in _NO_KEYS]
    if not table.key or bad:
        what = f"a key of type {table.columns[bad[0]].type}" if bad else "no primary key"
        raise ConfigError(
            f"mysql: {table.full} has {what}, so its rows cannot be read in order; change the key, or leave the table "
            "out of 'tables' (snapshotMode: never reads changes only)"
        )


def _kept(raw: str | bytes, column: Column) -> str:
    """Returns a key's cell as it is in a token: text, or base64 of bytes."""
    if column.type in (*BYTES, "bit"):
        return base64.b64encode(raw if isinstance(raw, bytes) else raw.encode()).decode()
    return raw if isinstance(raw, str) else raw.decode()


def _literal(connection: Any, kept: str, column: Column) -> str:
    """Returns a key's cell as SQL that the server compares as the column's own type."""
    if column.type in (*BYTES, "bit"):
        data = base64.b64decode(kept)
        return f"X'{data.hex()}'" if column.type != "bit" else str(int.from_bytes(data, "big"))
    if column.type in ("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "date", "datetime"):
        return str(connection.escape(kept))
    if column.type in ("timestamp", "time"):
        return str(connection.escape(kept))
    # A number as such: a text would be compared as a double.
    return f"{int(kept)}" if column.type != "decimal" else str(connection.escape(_decimal(kept)))


def _decimal(text: str) -> Any:
    from decimal import Decimal

    return Decimal(text)


def _rows_after(
    connection: Any, table: Table, columns: Sequence[Column], after: Sequence[str] | None, most: int | None
) -> Iterator[Sequence[Any]]:
    """Yields rows in the order of the key, behind the key `after`, as the server writes their values."""
    cells = ", ".join(selected(column, quoted(column.name)) for column in columns)
    keys = [quoted(n) for n in table.key]
    places = [[column.name for column in columns].index(n) for n in table.key]
    portion = Portion(FETCH)
    left = most
    while left is None or left > 0:
        size = portion.size if left is None else min(portion.size, left)
        behind = "" if after is None else f" WHERE {_behind(connection, table, keys, after)}"
        statement = f"SELECT {cells} FROM {quoted(table.schema, table.name)}{behind}"  # noqa: S608 - names are quoted
        page = _raw(connection, f"{statement} ORDER BY {', '.join(keys)} LIMIT {size}")
        portion.came(len(page), sum(len(cell) for cells in page for cell in cells if cell is not None))
        yield from page
        if len(page) < size:
            return
        left = None if left is None else left - size
        after = [_kept(page[-1][place], table.columns[n]) for n, place in zip(table.key, places)]


def _behind(connection: Any, table: Table, keys: Sequence[str], after: Sequence[str]) -> str:
    """Returns the condition of rows behind a key; not (a, b) > (x, y), for which MySQL uses no index."""
    values = [_literal(connection, kept, table.columns[n]) for n, kept in zip(table.key, after)]
    cases = [
        " AND ".join([*(f"{k} = {v}" for k, v in zip(keys[:n], values)), f"{keys[n]} > {values[n]}"])
        for n in range(len(keys))
    ]
    return f"{keys[0]} >= {values[0]} AND (({') OR ('.join(cases)}))"


def _raw(connection: Any, statement: str) -> Sequence[Sequence[Any]]:
    """Returns rows with their values as the server writes them."""
    made, connection.decoders = connection.decoders, {}
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()
    finally:
        connection.decoders = made


class Changes:
    """Changes behind a place, within the limits of the slice. After reading, `end` is the token that follows: the end
    of the last whole transaction, and `within`: transactions that were read in part, and how many rows of each. Their
    names say which they are: another server may have transactions in another order.

    The log does not change: a slice that is read again gives the same, up to the end that its plan saw.
    """

    def __init__(self, slice: Slice, log: Log, connection: Any, database: str, names: str) -> None:
        hint = slice.hint
        self._log, self._upto, self._database, self._names = log, hint["upto"], database, names
        self._records, self._bytes = hint["records"], hint["bytes"]
        self._tables = _Tables(connection)
        start = hint["from"]
        self._place: Place = {name: start[name] for name in ("file", "pos", "gtid", "server") if name in start}
        self._within: dict[str, int] = dict(start.get("within") or {})
        # Tokens of before name no transaction: it is the next one.
        self._had = 0 if self._within else start["skip"]
        self._group, self._n, self._count, self._size = "", 0, 0, 0

    @property
    def end(self) -> dict[str, Any]:
        if not self._group and self._had:
            return {**self._place, "skip": self._had}
        read = {**self._within, self._group: max(self._had, self._n)}
        return {**self._place, **skipped({group: n for group, n in read.items() if n}, self._names)}

    def read(self) -> Iterator[Sized]:
        for found in self._log.read(self._place):
            if isinstance(found, End):
                self._within.pop(self._group, None)
                self._place, self._group, self._n, self._had = {**self._kept(), **found.place}, "", 0, 0
                if self._full or reached(found.place, self._upto):
                    return
                continue
            if self._full:
                return
            if found.group != self._group:
                self._group = found.group
                self._had = self._within.get(found.group, self._had)
            for number, (record, size) in enumerate(self._records_of(found), self._n + 1):
                if number <= self._had:
                    self._n = number
                    continue
                if self._full:
                    return
                self._n = number
                self._count += 1
                self._size += size
                yield record, size

    @property
    def _full(self) -> bool:
        if self._records is not None and self._count >= self._records:
            return True
        return self._count > 0 and self._bytes is not None and self._size >= self._bytes

    def _kept(self) -> Place:
        return {"server": self._place["server"]} if "server" in self._place else {}

    def _records_of(self, found: Rows | Emptied) -> Iterator[Sized]:
        number = self._n
        created = {"opencdc.createdAt": str(found.seconds * 1_000_000_000)}
        if isinstance(found, Emptied):
            of = collection(found.schema, found.table, self._database)
            position = f"{found.group}/{number + 1}".encode()
            yield Record(position, "delete", {**created, "opencdc.collection": of, MYSQL_EMPTIED: "true"}), 0
            return
        table = self._tables.of(found.table_map)
        metadata = {**created, "opencdc.collection": collection(table.schema, table.name, self._database)}
        try:
            for before, after, size in _images(found, table):
                number += 1
                key = _key(table, after if after is not None else before)
                position = f"{found.group}/{number}".encode()
                yield Record(position, found.kind, dict(metadata), key, before, after), size
        except Undecodable as error:
            raise SourceError(
                f"mysql: {table.schema}.{table.name}: change {found.group}/{number + 1} cannot be decoded: {error}. "
                f"The log does not change: leave the table out of 'tables', or {AGAIN}; and report it"
            ) from error


def skipped(within: Mapping[str, int], names: str) -> dict[str, Any]:
    """Returns what a token says of transactions that were read in part: rows are counted over the tables `names`."""
    return {"skip": sum(within.values()), **({"within": dict(within), "tables": names} if within else {})}


def _key(table: Shape, values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return {name: (values or {}).get(name) for name in table.key} or None


def _images(found: Rows, table: Shape) -> Iterator[tuple[dict[str, Any] | None, dict[str, Any] | None, int]]:
    """Yields (before, after, bytes) of each row of an event."""
    event = found.event
    data, at = bytes(event.packet.read(event.event_size - event.packet.read_bytes)), 0
    while at < len(data):
        began = at
        before = after = None
        first, at = row(data, at, table, event.columns_present_bitmap)
        if found.kind == "update":
            before = first
            after, at = row(data, at, table, event.columns_present_bitmap2)
        elif found.kind == "create":
            after = first
        else:
            before = first
        yield before, after, at - began


class _Tables:
    """Tables of the log, each described once for all events that describe it alike."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._charsets = Charsets(connection)
        self._now: dict[tuple[str, str], Table | None] = {}
        self._shapes: dict[int, Shape] = {}
        self._last: Any = None

    def of(self, event: Any) -> Shape:
        if self._last is not event:
            try:
                self._last, self._shape = event, shape(event, self._charsets, self._described(event))
            except (StopIteration, LookupError, AttributeError, TypeError, ValueError) as error:
                raise SourceError(
                    f"mysql: what the log says of the columns of {event.schema}.{event.table} cannot be read "
                    f"({type(error).__name__}): leave the table out of 'tables', and report it"
                ) from error
        return self._shape

    def _described(self, event: Any) -> Table | None:
        """Returns the table as it is now; None if it is not there any more. Raises ConfigError for a column of a type
        that is not supported."""
        name = event.schema, event.table
        if name not in self._now:
            try:
                self._now[name] = described(self._connection, *name)
            except ConfigError:
                self._now[name] = None
        found = self._now[name]
        if found is not None:
            check_known(found)
        return found
