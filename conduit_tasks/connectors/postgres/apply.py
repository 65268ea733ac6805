"""Records as changes of tables, within one transaction: several changes of one key are written once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from conduit_tasks.connectors.keyed import fields_of, removed, written
from conduit_tasks.connectors.postgres.cells import cell
from conduit_tasks.connectors.postgres.client import library
from conduit_tasks.connectors.postgres.keys import Key, spellings
from conduit_tasks.connectors.postgres.staged import copy_rows, identified, staged
from conduit_tasks.connectors.postgres.tables import Table
from conduit_tasks.connectors.tables import UNCHANGED, empties
from conduit_tasks.errors import DoesNotFit, Refused
from conduit_tasks.record.record import Record

Cells = dict[str, str | None]


@dataclass(frozen=True)
class Change:
    """Change of the row of `key`, or of every row if there is no key. `row`: its new values, None if the row is
    deleted; `was`: its key until then; `rest_stays`: if the row exists, columns that `row` does not name are kept
    although the key changes."""

    key: Key | None
    row: Cells | None = None
    was: Key | None = None
    rest_stays: bool = False


@dataclass
class Pending:
    """Work left for one table: rows that are only added, or its changes in their order."""

    table: Table
    key: tuple[str, ...]
    added: list[Cells] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


class Apply:
    """Collects changes in their order; `finish` writes them together.

    Raises Refused if a record cannot be a change of its table.
    """

    def __init__(self, cursor: Any, append: bool) -> None:
        self._cursor, self._append = cursor, append
        self._pending: dict[str, Pending] = {}

    def take(self, record: Record, name: str, table: Table, key: tuple[str, ...]) -> None:
        """Adds one record for the table `name`, whose rows are told apart by `key`."""
        pending = self._pending.setdefault(name, Pending(table, key))
        if self._append:
            if record.operation == "delete":
                raise Refused("a delete cannot be appended; write `mode: upsert`, or filter it")
            cells = _cells(fields_of(record), table)
            if not cells:
                raise DoesNotFit(f"the record has no field that table {name} has a column for")
            pending.added.append(cells)
        else:
            pending.changes.append(_change(record, pending))

    def finish(self) -> None:
        for pending in self._pending.values():
            for names, rows in _by_columns(pending.added):
                copy_rows(self._cursor, identified(pending.table), names, ([row[n] for n in names] for row in rows))
            TableRows(self._cursor, pending).apply()


class TableRows:
    """Rows of one table: `_gone` holds the keys whose rows are deleted first, `_came` the rows that are then written,
    per key."""

    def __init__(self, cursor: Any, pending: Pending) -> None:
        self._cursor, self._table, self._names, self._changes = cursor, pending.table, pending.key, pending.changes
        self._gone: dict[Key, None] = {}
        self._came: dict[Key, Cells] = {}

    def apply(self) -> None:
        """Writes the changes as if each were written on its own: a row written over an existing one keeps the columns
        that it does not name; a row written after the delete of its key does not."""
        keys = {key for change in self._changes for key in (change.key, change.was) if key is not None}
        same = spellings(self._cursor, self._table, self._names, keys) if self._changes else {}
        for change in self._changes:
            if change.key is None:
                self._gone.clear()
                self._came.clear()
                self._execute("DELETE FROM {}")
                continue
            key = same.get(change.key, change.key)
            if change.row is None:
                self._goes(key)
                continue
            was = key if change.was is None else same.get(change.was, change.was)
            if change.rest_stays and (was != key or key not in self._came):
                self._flush()
                if was != key:
                    self._make_room(key, was)
                if self._updated(was, change.row):
                    continue
            elif was != key:
                self._goes(was)
            self._comes(key, change.row)
        self._flush()

    def _goes(self, key: Key) -> None:
        self._came.pop(key, None)
        self._gone[key] = None

    def _comes(self, key: Key, row: Cells) -> None:
        before = self._came.get(key)
        if before is not None:
            row = {**before, **row, **{name: before[name] for name in self._names}}
        self._came[key] = row

    def _updated(self, was: Key, row: Cells) -> bool:
        """Returns whether there is a row with the key `was`, which then has these values."""
        self._execute("UPDATE {} SET {} WHERE {}", library().sql.SQL(", ").join(_equal(row.items())), self._where(was))
        return bool(self._cursor.rowcount)

    def _make_room(self, key: Key, was: Key) -> None:
        """Removes what has the key that the row of `was` is to get. It is an older state of the same row, from a write
        that is repeated: where both were there at once, the source could not have moved it either."""
        there = (self._where(key), identified(self._table), self._where(was))
        self._execute("DELETE FROM {} WHERE {} AND EXISTS (SELECT FROM {} WHERE {})", *there)

    def _where(self, key: Key) -> Any:
        return library().sql.SQL(" AND ").join(_equal(zip(self._names, key, strict=True)))

    def _flush(self) -> None:
        """Deletes rows before it writes others, so that the deleted rows make room for them."""
        if self._gone:
            self._remove(self._gone)
        for names, rows in _by_columns(self._came.values()):
            self._put(names, rows)
        self._gone.clear()
        self._came.clear()

    def _remove(self, keys: Collection[Key]) -> None:
        sql = library().sql
        same = sql.SQL(" AND ").join(sql.SQL("t.{0} = k.{0}").format(sql.Identifier(n)) for n in self._names)
        with staged(self._cursor, self._table, self._names) as place:
            copy_rows(self._cursor, place, self._names, keys)
            self._execute("DELETE FROM {} AS t USING {} AS k WHERE {}", place, same)

    def _put(self, names: Sequence[str], rows: Sequence[Cells]) -> None:
        sql = library().sql
        columns = sql.SQL(", ").join(map(sql.Identifier, names))
        sets = [sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(n)) for n in names if n not in self._names]
        action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING")
        keys = sql.SQL(", ").join(map(sql.Identifier, self._names))
        statement = "INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} ON CONFLICT ({}) DO {}"
        with staged(self._cursor, self._table, names) as place:
            copy_rows(self._cursor, place, names, ([row[n] for n in names] for row in rows))
            self._execute(statement, columns, columns, place, keys, action)

    def _execute(self, statement: str, *parts: Any) -> None:
        self._cursor.execute(library().sql.SQL(statement).format(identified(self._table), *parts))


def _equal(values: Iterable[tuple[str, str | None]]) -> list[Any]:
    """Literals without a type take the column's, and are refused if they are too long, as `COPY` does."""
    sql = library().sql
    return [sql.SQL("{} = {}").format(sql.Identifier(n), sql.Literal(text)) for n, text in values]


def _change(record: Record, pending: Pending) -> Change:
    table = pending.table

    def as_cell(name: str, value: Any) -> str | None:
        return cell(value, table.values[name], name)

    if record.operation == "delete":
        return Change(None) if empties(record) else Change(removed(record, pending.key, as_cell))
    values, key, was = written(record, pending.key, as_cell)
    return Change(key, _cells(values, table), was, UNCHANGED in record.metadata)


def _cells(values: dict[str, Any], table: Table) -> Cells:
    return {n: cell(v, table.values[n], n) for n, v in values.items() if n in table.values}


def _by_columns(rows: Iterable[Cells]) -> list[tuple[tuple[str, ...], list[Cells]]]:
    """Returns runs of rows with the same columns, in their order."""
    return [(names, list(group)) for names, group in groupby(rows, key=lambda row: tuple(sorted(row)))]
