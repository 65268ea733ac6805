"""Rows of Arrow (Parquet, Delta, Iceberg, Spark) as records and back: JSON of types that JSON does not have, keys, two
columns of one name."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from conduit_tasks.connectors.rows import Rows
from conduit_tasks.errors import DoesNotFit, Refused, SourceError
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record, json_data
from conduit_tasks.record.schema import AFTER_STRUCTURED, RECORD_FIELDS, read_batch

ERROR = "conduit.error"

FORMS = ("payload", "opencdc")
"""Forms of a row: the payload's fields, or the whole record in columns of fixed types."""

LEVELS = 90
"""Limit of the levels of a column. Readers of Parquet refuse a deeper file with all its rows (Arrow: at 100)."""

OPENCDC = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("position", pa.binary()),
        pa.field("operation", pa.string()),
        pa.field("metadata", pa.map_(pa.string(), pa.string())),
        pa.field("key", pa.string()),
        pa.field("before", pa.string()),
        pa.field("after", pa.string()),
    ]
)
"""Columns of `opencdc`. `key`, `before` and `after` are JSON; raw data is a JSON string, as in `Record.to_opencdc`."""


def table_of(records: Sequence[Record], form: str) -> pa.Table:
    """Returns the records as rows, in order.

    Raises Refused if a record has no structured payload to be a row, DoesNotFit if the values of a field fit no common
    type; bisection then finds the record, or separates records that do not go together.
    """
    if form == "opencdc":
        return pa.Table.from_pylist([_opencdc(r) for r in records], OPENCDC)
    rows = [r.after for r in records if isinstance(r.after, dict)]
    if len(rows) != len(records):
        raise Refused("a record without a structured payload after is no row; write `rows: opencdc` to keep them all")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {}
    for name in names:
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise DoesNotFit(f"field '{name}' has values of types that do not go together: {error}") from None
        if _levels(columns[name].type) > LEVELS:
            raise DoesNotFit(
                f"field '{name}' is nested too deeply for a column; write `rows: opencdc` to keep it as JSON"
            )
        if _true_as_one(columns[name].type, values):
            raise DoesNotFit(f"field '{name}' has values of types that do not go together: a fraction and a boolean")
    return pa.table(columns) if columns else pa.table({"_": pa.nulls(len(rows))})


def _true_as_one(type_: pa.DataType, values: Iterable[Any]) -> bool:
    """Returns whether a boolean is among values that Arrow took for fractions: behind a fraction it makes 1.0 of true
    without a word. It is called for columns of few `_levels`."""
    if pa.types.is_floating(type_):
        return any(value is True or value is False for value in values)
    if pa.types.is_list(type_):
        found = [element for value in values if value is not None for element in value]
        return bool(found) and _true_as_one(type_.value_type, found)
    if pa.types.is_struct(type_):
        there = [value for value in values if value is not None]
        fields = [field for field in type_ if pa.types.is_floating(field.type) or pa.types.is_nested(field.type)]
        return any(_true_as_one(field.type, [value.get(field.name) for value in there]) for field in fields)
    return False


def _levels(type_: pa.DataType) -> int:
    """Counts the levels of Parquet's schema below a column, without recursion: types are nested as deeply as data."""
    deepest, todo = 0, [(type_, 1)]
    while todo:
        each, level = todo.pop()
        deepest = max(deepest, level)
        # A list is a group of elements within a group.
        below = 2 if pa.types.is_list(each) else 1
        todo += [(each.field(n).type, level + below) for n in range(each.num_fields)]
    return deepest


def written_rows(rows: Rows, form: str) -> pa.Table:
    """Returns rows as `table_of` does, for a batch-wise destination."""
    return table_of(rows.records(), form)


def batch_of(rows: pa.RecordBatch, part: str, first: int, key: str | None) -> pa.RecordBatch:
    """Returns rows as READ_SCHEMA, their fields as payload. Positions are `<part>:<row>`; `key`: the field of the key.

    Raises SourceError if two columns, or two fields of a struct, have the same name.
    """
    check_names(rows.schema, part)
    values, bad = _values(rows)
    payloads = pa.array([json_of(row) for row in values], pa.binary())
    keys = None
    if key is not None:
        keys = pa.array([key_of(row.get(key)) for row in values], pa.binary())
    positions = pa.array([f"{part}:{first + n}".encode() for n in range(rows.num_rows)], pa.binary())
    errors = [[(ERROR, f"{part} at row {first + n}: {bad[n]}")] if n in bad else None for n in range(len(values))]
    metadata = pa.array(errors, RECORD_FIELDS[2].type) if bad else None
    return read_batch(positions, after=payloads, key=keys, metadata=metadata, shape=AFTER_STRUCTURED)


def check_names(columns: Iterable[str | pa.Field], where: str) -> None:
    """Raises SourceError if two columns, or two fields within one, have the same name: a record would keep only the
    last."""
    seen: set[str] = set()
    for column in columns:
        name = column if isinstance(column, str) else column.name
        if name in seen:
            raise SourceError(f"{where}: two columns have the name {name!r}, and one would be lost; rename one")
        seen.add(name)
        if not isinstance(column, str):
            check_names((column.type.field(n) for n in range(column.type.num_fields)), f"{where}: {name}")


def _values(rows: pa.RecordBatch) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Returns the rows, and errors by row that cannot be read: Arrow does not check that a text is UTF-8."""
    try:
        return rows.to_pylist(), {}
    except UnicodeDecodeError:
        pass
    values, bad = [], {}
    for n in range(rows.num_rows):
        try:
            values += rows.slice(n, 1).to_pylist()
        except UnicodeDecodeError as error:
            bad[n] = f"a text is not UTF-8: {error}"
            values.append({})
    return values, bad


def _opencdc(record: Record) -> dict[str, Any]:
    data = {name: json_data(getattr(record, name)) for name in ("key", "before", "after")}
    texts = {name: None if value is None else json_of(value).decode() for name, value in data.items()}
    return {
        "id": record.id,
        "position": record.position,
        "operation": record.operation,
        "metadata": list(record.meta().items()),
        **texts,
    }


def json_of(value: Any) -> bytes:
    """Returns the JSON of a row: decimals as text, bytes in base64, durations in seconds, times in ISO 8601."""
    return jsons.raw(value, _plain)


def _plain(value: Any) -> Any:
    """Converts types that JSON does not have: decimals to text, which keeps every digit, bytes to base64, durations to
    seconds."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    seconds = getattr(value, "total_seconds", None)
    return seconds() if seconds is not None else str(value)


def key_of(value: Any) -> bytes | None:
    """Returns a field's value as a record's key."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json_of(value)
