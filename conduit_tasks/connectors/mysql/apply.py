"""Records as statements for tables of MySQL, in their order: insert, update by key, move to another key, delete, empty;
refused where the server would store another value.

Changes that follow each other and are of one kind share a statement. They are not merged: only the server knows which
texts are the same key. A statement works on its rows in their order, so that a key may come twice in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from conduit_tasks.connectors.keyed import fields_of, removed, written
from conduit_tasks.connectors.mysql.cells import Cell, cell
from conduit_tasks.connectors.mysql.client import quoted
from conduit_tasks.connectors.mysql.tables import Table
from conduit_tasks.connectors.tables import UNCHANGED, empties
from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Record

Key = tuple[Cell, ...]
_TOLD_APART = (1287, 1681)
"""Warnings about a statement's words, which are of no row: something is deprecated."""
_STATEMENT = 1 << 20
"""Bytes at which a statement is sent; the server's own limit, if that is less."""


@dataclass(frozen=True)
class Step:
    """One change. `kind`: put (insert, or update what has the key), add (insert), remove, move (the row of the key
    `was` gets these values and keeps the rest; without one: put), or empty the table."""

    kind: str
    table: Table
    key: tuple[str, ...]
    names: tuple[str, ...] = ()
    values: Key = ()
    was: Key = ()

    @property
    def alike(self) -> Any:
        """Steps for which this is the same, one after the other, share a statement."""
        return self.kind, self.table.full, self.key, self.names


class Apply:
    """Collects changes in their order; `finish` writes them. Raises Refused if a record cannot be a change of its
    table, or if the server would store another value."""

    def __init__(self, cursor: Any, append: bool, packet: int) -> None:
        self._cursor, self._append = cursor, append
        self._most = min(_STATEMENT, packet // 2)
        self._packet = packet
        self._steps: list[Step] = []

    def take(self, record: Record, name: str, table: Table, key: tuple[str, ...]) -> None:
        """Adds one record for the table `name`, whose rows are told apart by `key`."""
        if self._append:
            if record.operation == "delete":
                raise Refused("a delete cannot be appended; write `mode: upsert`, or filter it")
            self._steps.append(_put(fields_of(record), table, key, "add"))
        else:
            self._steps.extend(_changes(record, table, key))

    def finish(self) -> None:
        for _, group in groupby(self._steps, key=lambda step: step.alike):
            steps = list(group)
            first, rows = steps[0], [step.values for step in steps]
            if first.kind == "empty":
                self._execute(f"DELETE FROM {_name(first.table)}")  # noqa: S608
            elif first.kind == "remove":
                self._remove(first, rows)
            elif first.kind == "move":
                for step in steps:
                    self._move(step)
            else:
                self._put(first, rows)

    def _put(self, step: Step, rows: Sequence[Key]) -> None:
        if step.kind == "put" and step.table.unique != {frozenset(step.key)}:
            self._put_each(step, rows)
        else:
            self._insert(step, rows)

    def _move(self, step: Step) -> None:
        """Gives a row another key. What has that key is an older state of the same row, from a write that is repeated:
        where both were there at once, the source could not have moved it either."""
        was, values = self._equal(step.key, step.was), dict(zip(step.names, step.values))
        if not self._execute(f"SELECT 1 FROM {_name(step.table)} WHERE {was} FOR UPDATE"):  # noqa: S608
            self._put(replace(step, kind="put"), [step.values])
            return
        now = self._equal(step.key, [values[n] for n in step.key])
        self._execute(f"DELETE FROM {_name(step.table)} WHERE {now} AND NOT ({was})")  # noqa: S608
        texts = ", ".join(f"{quoted(n)} = {self._literal(v)}" for n, v in values.items())
        self._execute(f"UPDATE {_name(step.table)} SET {texts} WHERE {was}")  # noqa: S608

    def _insert(self, step: Step, rows: Sequence[Key]) -> None:
        names = ", ".join(map(quoted, step.names))
        behind = ""
        if step.kind == "put":
            # Something has to be set, or a row that is there would be an error.
            sets = [n for n in step.names if n not in step.key] or [step.key[0]]
            behind = " ON DUPLICATE KEY UPDATE " + ", ".join(f"{quoted(n)} = VALUES({quoted(n)})" for n in sets)
        for some in self._in_pieces(rows):
            self._execute(f"INSERT INTO {_name(step.table)} ({names}) VALUES {some}{behind}")  # noqa: S608

    def _put_each(self, step: Step, rows: Sequence[Key]) -> None:
        """Writes row by row, where another unique index than the key's may have the same value: `ON DUPLICATE KEY`
        would then overwrite that other row."""
        for row in rows:
            values = dict(zip(step.names, row))
            sets = {n: values[n] for n in step.names if n not in step.key} or {step.key[0]: values[step.key[0]]}
            where = [values[n] for n in step.key]
            texts = ", ".join(f"{quoted(n)} = {self._literal(v)}" for n, v in sets.items())
            found = self._execute(f"UPDATE {_name(step.table)} SET {texts} WHERE {self._equal(step.key, where)}")  # noqa: S608
            if not found:
                self._insert(Step("add", step.table, step.key, step.names), [row])

    def _remove(self, step: Step, rows: Sequence[Key]) -> None:
        names = ", ".join(map(quoted, step.key))
        columns = f"({names})" if len(step.key) > 1 else names
        for some in self._in_pieces(rows, single=len(step.key) == 1):
            self._execute(f"DELETE FROM {_name(step.table)} WHERE {columns} IN ({some})")  # noqa: S608

    def _equal(self, names: Sequence[str], values: Sequence[Cell]) -> str:
        return " AND ".join(f"{quoted(n)} = {self._literal(v)}" for n, v in zip(names, values))

    def _in_pieces(self, rows: Iterable[Key], *, single: bool = False) -> Iterator[str]:
        """Yields rows as text of SQL, as many together as a statement takes."""
        texts: list[str] = []
        size = 0
        for row in rows:
            text = ", ".join(map(self._literal, row))
            text = text if single else f"({text})"
            if texts and size + 4 * len(text) > self._most:
                yield ", ".join(texts)
                texts, size = [], 0
            texts.append(text)
            # UTF-8 has four bytes for a character at most.
            size += 4 * len(text)
        if texts:
            yield ", ".join(texts)

    def _literal(self, value: Cell) -> str:
        # Bytes in hex: as a text they would be of the connection's charset.
        return f"X'{value.hex()}'" if isinstance(value, bytes) else str(self._cursor.connection.escape(value))

    def _execute(self, statement: str) -> int:
        """Executes a statement, and returns the number of rows that it found. Raises Refused if the server warns about
        a row, because it then stored another value than it was given."""
        data = statement.encode("utf-8", "surrogateescape")
        if len(data) + 1 > self._packet:
            raise Refused(
                f"a row of {len(data):,} bytes is larger than the server takes (max_allowed_packet: {self._packet:,})"
            )
        found = int(self._cursor.execute(data))
        if self._cursor.warning_count:
            count = self._cursor.warning_count
            self._cursor.execute("SHOW WARNINGS")
            told = self._cursor.fetchall()
            said = [text for _, code, text in told if code not in _TOLD_APART]
            if said or len(told) < count:
                why = said[0] if said else f"it warns of {count} rows and does not say why (max_error_count)"
                raise Refused(f"the server would store another value: {why}")
        return found


def _name(table: Table) -> str:
    return quoted(table.schema, table.name)


def _changes(record: Record, table: Table, key: tuple[str, ...]) -> Iterator[Step]:
    def as_cell(name: str, value: Any) -> Cell:
        return cell(value, table.columns[name])

    if record.operation == "delete":
        yield (
            Step("empty", table, key)
            if empties(record)
            else Step("remove", table, key, (), removed(record, key, as_cell))
        )
        return
    values, new, was = written(record, key, as_cell)
    put = _put(values, table, key, "put")
    if was is not None and was != new:
        if UNCHANGED in record.metadata:
            yield replace(put, kind="move", was=was)
            return
        yield Step("remove", table, key, (), was)
    yield put


def _put(values: dict[str, Any], table: Table, key: tuple[str, ...], kind: str) -> Step:
    cells = {
        n: cell(v, table.columns[n]) for n, v in values.items() if n in table.columns and not table.columns[n].made
    }
    if not cells:
        raise Refused(f"the record has no field that table {table.name} has a column for")
    names = tuple(sorted(cells))
    return Step(kind, table, key, names, tuple(cells[n] for n in names))
