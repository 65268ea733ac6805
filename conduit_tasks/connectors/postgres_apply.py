"""Records as changes of tables, within one transaction: what happens to a key more than once is done once."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from conduit_tasks.connectors.postgres_cells import cell, copy_line
from conduit_tasks.connectors.postgres_client import library
from conduit_tasks.connectors.postgres_read import TRUNCATED, UNCHANGED
from conduit_tasks.connectors.postgres_tables import Table
from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Record

Cells = dict[str, str | None]
Key = tuple[str, ...]


@dataclass
class Pending:
    """What is still to be done to one table: its new rows, or per key the row it gets, None where it goes."""

    table: Table
    key: tuple[str, ...]
    rows: dict[Key, Cells | None] = field(default_factory=dict)
    added: list[Cells] = field(default_factory=list)


class Apply:
    """Collects changes in their order and writes them together; `finish` writes the rest.

    Raises Refused where a record cannot be a change of its table.
    """

    def __init__(self, cursor: Any, append: bool) -> None:
        self._cursor, self._append = cursor, append
        self._pending: dict[str, Pending] = {}

    def take(self, record: Record, name: str, table: Table, key: tuple[str, ...]) -> None:
        """One record for the table `name`, whose rows `key` tells apart."""
        pending = self._pending.setdefault(name, Pending(table, key))
        if self._append:
            if record.operation == "delete":
                raise Refused("a delete cannot be appended; write `mode: upsert`, or filter it")
            pending.added.append(_cells(_fields(record), table))
        elif record.operation == "delete":
            self._delete(record, pending)
        else:
            self._upsert(record, pending)

    def finish(self) -> None:
        for pending in self._pending.values():
            self._flush(pending)

    def _delete(self, record: Record, pending: Pending) -> None:
        if TRUNCATED in record.metadata:
            pending.rows.clear()
            self._execute("DELETE FROM {}", pending.table)
            return
        for data in (record.key, record.before, record.after):
            if (key := _key(data, pending)) is not None:
                pending.rows[key] = None
                return
        raise Refused(f"a delete names no {', '.join(pending.key)} in its key or its payload")

    def _upsert(self, record: Record, pending: Pending) -> None:
        values = _fields(record)
        if isinstance(record.key, dict):
            values = {**{n: record.key[n] for n in pending.key if n in record.key}, **values}
        key = _key(values, pending)
        if key is None:
            raise Refused(f"the record has no {', '.join(pending.key)}, which is the key of the table")
        row = _cells(values, pending.table)
        was = _key(record.before, pending) if record.operation == "update" else None
        moved = was is not None and was != key
        if UNCHANGED in record.metadata:
            self._partial(pending, was if was is not None else key, key, row)
            return
        if moved and was is not None:
            pending.rows[was] = None
        pending.rows[key] = row

    def _partial(self, pending: Pending, was: Key, key: Key, row: Cells) -> None:
        """A row of which some columns stay as they are."""
        before = pending.rows.get(was)
        if before is not None:
            pending.rows[was] = None
            pending.rows[key] = {**before, **row}
            return
        self._flush(pending)
        sql = library().sql
        table = pending.table
        sets = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(n), _typed(text, table.types[n])) for n, text in row.items()
        )
        where = sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(n), _typed(text, table.types[n]))
            for n, text in zip(pending.key, was, strict=True)
        )
        self._execute("UPDATE {} SET {} WHERE {}", table, sets, where)
        if self._cursor.rowcount == 0:
            pending.rows[key] = row

    def _flush(self, pending: Pending) -> None:
        """Rows that go before rows that come, so that they make room for them."""
        gone = [key for key, row in pending.rows.items() if row is None]
        if gone:
            self._remove(pending, gone)
        for names, rows in _by_columns(row for row in pending.rows.values() if row is not None):
            self._put(pending, names, rows)
        for names, rows in _by_columns(pending.added):
            self._copy(_identified(pending.table), names, rows)
        pending.rows.clear()
        pending.added.clear()

    def _remove(self, pending: Pending, keys: Sequence[Key]) -> None:
        sql = library().sql
        table = pending.table
        with_keys = sql.SQL(", ").join(
            sql.SQL("({})").format(sql.SQL(", ").join(_typed(t, table.types[n]) for n, t in zip(pending.key, key)))
            for key in keys
        )
        names = sql.SQL(", ").join(map(sql.Identifier, pending.key))
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(n)) for n in pending.key)
        self._execute("DELETE FROM {} AS t USING (VALUES {}) AS k ({}) WHERE {}", table, with_keys, names, same)

    def _put(self, pending: Pending, names: Sequence[str], rows: Sequence[Cells]) -> None:
        sql = library().sql
        staged = sql.Identifier("conduit_staged")
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        statement = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
        self._cursor.execute(statement.format(staged, columns, _identified(pending.table)))
        self._copy(staged, names, rows)
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(n)) for n in names if n not in pending.key]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING")
        keys = sql.SQL(", ").join(map(sql.Identifier, pending.key))
        statement = "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} ON CONFLICT ({}) DO {}"
        self._execute(statement, pending.table, columns, columns, staged, keys, action)
        self._cursor.execute(sql.SQL("DROP TABLE {}").format(staged))

    def _copy(self, into: Any, names: Sequence[str], rows: Sequence[Cells]) -> None:
        sql = library().sql
        text = "".join(copy_line([row[n] for n in names]) for row in rows)
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(into, columns).as_string(self._cursor)
        self._cursor.copy_expert(statement, io.BytesIO(text.encode()))

    def _execute(self, statement: str, table: Table, *parts: Any) -> None:
        self._cursor.execute(library().sql.SQL(statement).format(_identified(table), *parts))


def _identified(table: Table) -> Any:
    return library().sql.Identifier(table.schema, table.name)


def _typed(text: str | None, type_: str) -> Any:
    sql = library().sql
    return sql.SQL("{}::" + type_).format(sql.Literal(text))


def _fields(record: Record) -> dict[str, Any]:
    if not isinstance(record.after, dict):
        raise Refused("a record without a structured payload after is no row; decode it first (json.decode)")
    return record.after


def _cells(values: dict[str, Any], table: Table) -> Cells:
    return {n: cell(v, table.types[n], n) for n, v in values.items() if n in table.types}


def _key(data: Any, pending: Pending) -> Key | None:
    """The key's cells, None where `data` does not have them all."""
    if isinstance(data, bytes) and len(pending.key) == 1:
        data = {pending.key[0]: data}
    if not isinstance(data, dict):
        return None
    cells = [cell(data.get(n), pending.table.types[n], n) for n in pending.key]
    return None if None in cells else tuple(cells)  # type: ignore[arg-type]  # none of them is None


def _by_columns(rows: Iterable[Cells]) -> list[tuple[tuple[str, ...], list[Cells]]]:
    """Runs of rows with the same columns, in their order."""
    return [(names, list(group)) for names, group in groupby(rows, key=lambda row: tuple(sorted(row)))]
