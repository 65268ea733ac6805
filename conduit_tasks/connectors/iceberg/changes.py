"""Records as changes of the rows of a table that has a key: the last change of a key counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType

from conduit_tasks.connectors.arrow_fit import cast
from conduit_tasks.connectors.keyed import removed, written
from conduit_tasks.connectors.tables import UNCHANGED, empties
from conduit_tasks.errors import ConfigError, DoesNotFit, Refused
from conduit_tasks.record.record import Record

Key = tuple[Any, ...]

_FILTER: Any = expressions
"""Its classes take a column's name and values, which their annotations do not say."""
ALL = expressions.AlwaysTrue()


@dataclass(frozen=True)
class Change:
    """Change of the row of a key, whose values are as in the payload; of all rows if there is none. `row`: the record
    that is the row from now on, None if the row is deleted. `was`: the key until then."""

    key: Sequence[Any] | None
    row: Record | None = None
    was: Sequence[Any] | None = None


def change_of(record: Record, names: Sequence[str]) -> Change:
    """Returns what a record changes. Raises Refused if it names no key."""
    if record.operation == "delete":
        return Change(None) if empties(record) else Change(removed(record, names, _value))
    if UNCHANGED in record.metadata:
        raise Refused(
            f"the record leaves out {record.meta()[UNCHANGED]}, which did not change, and a row is written whole; give "
            "the table of PostgreSQL REPLICA IDENTITY FULL"
        )
    _, key, was = written(record, names, _value)
    return Change(key, record, was if was != key else None)


def _value(_: str, value: Any) -> Any:
    """Returns the value of a key; None for a raw one that is no text."""
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return None


def row_of(record: Record, names: Sequence[str]) -> Record:
    """Returns the record with the fields of its key in its payload, if they are not there."""
    assert isinstance(record.after, dict)
    beside = {name: value for name, value in _named(record.key, names).items() if name not in record.after}
    if not beside:
        return record
    return replace(record, after={**record.after, **beside})


def _named(data: Any, names: Sequence[str]) -> dict[str, Any]:
    return {name: data[name] for name in names if name in data} if isinstance(data, dict) else {}


@dataclass(frozen=True)
class Folded:
    """Changes that are left. `rows`: places, among the changes' rows, of those that are written, in order; `keys`:
    rows of the table that go, replaced or deleted; `all`: every row of the table goes."""

    rows: list[int]
    keys: set[Key]
    all: bool


def fold(changes: Sequence[Change], names: Sequence[str], schema: Schema) -> Folded:
    """Returns what changes leave if each is made on its own. Raises Refused if a key is none of the table's."""
    of = iter(_keys([change.key for change in changes if change.key is not None], names, schema))
    before = iter(_keys([change.was for change in changes if change.was is not None], names, schema))
    rows: dict[Key, int] = {}
    keys: set[Key] = set()
    every, place = False, 0
    for change in changes:
        if change.key is None:
            rows.clear()
            keys.clear()
            every = True
            continue
        key = next(of)
        gone = [key] if change.was is None else [key, next(before)]
        keys.update(gone)
        for each in gone:
            rows.pop(each, None)
        if change.row is not None:
            rows[key] = place
            place += 1
    return Folded(sorted(rows.values()), keys, every)


def _keys(keys: Sequence[Sequence[Any]], names: Sequence[str], schema: Schema) -> list[Key]:
    """Returns keys in the types of the table's columns, so that equal ones are equal however they were written."""
    if not keys:
        return []
    types = schema.as_arrow()
    columns = []
    for n, name in enumerate(names):
        type_, values = types.field(name).type, [key[n] for key in keys]
        try:
            columns.append(cast(name, pa.array(values), type_).to_pylist())
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            # Texts, of raw keys, beside numbers.
            columns.append([_one(name, value, type_) for value in values])
    return list(zip(*columns, strict=True))


def _one(name: str, value: Any, type_: pa.DataType) -> Any:
    try:
        return cast(name, pa.array([value]), type_)[0].as_py()
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DoesNotFit(f"field '{name}' is no {type_}, as the column is: {error}") from None


def check_key(names: Sequence[str], schema: Schema) -> None:
    """Raises ConfigError if the table cannot have this key."""
    fields = {field.name: field for field in schema.fields}
    if missing := [name for name in names if name not in fields]:
        raise ConfigError(f"iceberg: the table has no column {', '.join(missing)}; change option 'key'")
    for name in names:
        of = fields[name].field_type
        if not of.is_primitive or isinstance(of, DoubleType | FloatType):
            raise ConfigError(f"iceberg: column '{name}' is of type {of}, which cannot be a key; change option 'key'")


def around(keys: Iterable[Key], names: Sequence[str]) -> expressions.BooleanExpression:
    """Returns a filter of all rows of these keys: exactly them if one column is the key, otherwise these and others.

    Bounds let files be passed over by their statistics, which a list of more than 200 values does not.
    """
    found = list(keys)
    where: Any = expressions.AlwaysTrue() if found else expressions.AlwaysFalse()
    for n, name in enumerate(names if found else ()):
        values = {key[n] for key in found}
        where = _FILTER.And(where, _FILTER.In(name, values))
        if not isinstance(found[0][n], bool):
            bounds = (_FILTER.GreaterThanOrEqual(name, min(values)), _FILTER.LessThanOrEqual(name, max(values)))
            where = _FILTER.And(where, *bounds)
    return where


def others(table: pa.Table, keys: set[Key], names: Sequence[str]) -> pa.Table:
    """Returns the rows whose key is none of `keys`."""
    found = zip(*(table.column(name).to_pylist() for name in names), strict=True)
    return table.filter(pa.array([key not in keys for key in found], pa.bool_()))
