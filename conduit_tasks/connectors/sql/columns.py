"""Cells of a row from a record: by option `columns`, by the columns of a table that is there, or as a whole record;
refused if a column would hold another value."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from conduit_tasks.connectors.column_types import ColumnType
from conduit_tasks.errors import ConfigError, DoesNotFit, RecordError, Refused
from conduit_tasks.record import fields, jsons
from conduit_tasks.record.record import Data, Record

TYPES: dict[str, Callable[[], sa.types.TypeEngine[Any]]] = {
    "text": sa.Text,
    "int": sa.BigInteger,
    "float": lambda: sa.Double(53),
    "bool": sa.Boolean,
    "json": sa.JSON,
}

ABSENT: Any = object()
"""The cell of a column for which a payload has no field: it is not written, so that the table's default, or what is
there, remains."""

_COLUMN = re.compile(r'\s*(?:"(?P<quoted>[^"]+)"|(?P<name>\w+))\s*(?::\s*(?P<type>\w+)\s*)?=\s*(?P<reference>\S.*)')


@dataclass(frozen=True)
class Column:
    """One column, and the function that takes its value from a record.

    `type` only matters if the table is created; how values are `stored` follows from the table itself: in a text column
    every value is text, in a JSON column JSON text, in any other what the driver makes of it.
    """

    name: str
    value: Callable[[Record], Any]
    type: str = "text"
    stored: Literal["text", "json", ""] = ""
    holds: ColumnType | None = None
    """Type of a column that may not hold a value exactly."""

    def stored_as(self, type_: sa.types.TypeEngine[Any], holds: ColumnType | None) -> Column:
        """Returns the column as the table has it."""
        if isinstance(type_, sa.JSON):
            return replace(self, stored="json", holds=holds)
        return replace(self, stored="text" if isinstance(type_, sa.String) else "", holds=holds)

    def cell(self, record: Record) -> Any:
        """Returns the cell of a record. Raises RecordError if the record has no such field."""
        return cell(self.value(record), self.stored)

    def checked(self, record: Record) -> Any:
        """Returns the cell. Raises DoesNotFit if the column would hold another value."""
        found = self.cell(record)
        if self.holds is not None and found is not ABSENT and (why := self.holds.unfit(found)):
            raise DoesNotFit(f"field '{self.name}' does not fit the column: {why}")
        return found

    def sql_type(self) -> sa.types.TypeEngine[Any]:
        return TYPES[self.type]()


def columns_of_setting(text: str) -> list[Column]:
    """Returns `name[:type]=reference, …` as columns. Raises ConfigError naming the part that is wrong."""
    columns = []
    for part in _split(text):
        match = _COLUMN.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"sql: option 'columns': {part.strip()!r} is not of the form name=.Payload.After.field")
        kind = match["type"] or "text"
        if kind not in TYPES:
            raise ConfigError(f"sql: option 'columns': there is no type '{kind}'; there are {', '.join(TYPES)}")
        try:
            reference = fields.parse(match["reference"])
        except ConfigError as error:
            raise ConfigError(f"sql: option 'columns': {error}") from None
        columns.append(Column(match["quoted"] or match["name"], reference.get, kind))
    return columns


def columns_of_table(names: Sequence[str]) -> list[Column]:
    """Returns columns by their names alone. A table with both `metadata` and `payload` holds whole records: there the
    names of RECORD_TYPES mean the parts of a record; every other name is a field of the payload."""
    whole = whole_records(names)
    out = []
    for name in names:
        if whole and name in RECORD_TYPES:
            out.append(Column(name, _RECORD_PARTS[name], RECORD_TYPES[name]))
        else:
            out.append(Column(name, _payload_field(name)))
    return out


def whole_records(names: Iterable[str]) -> bool:
    """Returns whether a table with these columns holds whole records."""
    return {"metadata", "payload"} <= set(names)


def row_of(record: Record, columns: Sequence[Column]) -> list[Any]:
    """Returns the cells of a record; ABSENT where a payload leaves a column of the table out. Raises Refused if a field
    that `columns` names is missing, DoesNotFit if a column would hold another value."""
    try:
        return [column.checked(record) for column in columns]
    except RecordError as error:
        raise Refused(str(error)) from error


def cell(value: Any, stored: str = "") -> Any:
    """Returns a value as database drivers take it: maps and lists as JSON text, bytes as text if they are UTF-8."""
    if value is None or value is ABSENT:
        return value
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = base64.b64encode(value).decode()
    if stored == "json" or isinstance(value, dict | list) or (stored == "text" and not isinstance(value, str)):
        return jsons.dumps(value).decode()
    return value


def payload(record: Record) -> Data:
    """Returns what the fields of a row are taken from."""
    return record.after if record.after is not None else record.before


def _payload_field(name: str) -> Callable[[Record], Any]:
    def value(record: Record) -> Any:
        data = payload(record)
        if isinstance(data, bytes):
            raise RecordError(f"column {name} is a field of the payload, which is raw; decode it first (json.decode)")
        return data.get(name, ABSENT) if data else ABSENT

    return value


RECORD_TYPES = {"position": "text", "operation": "text", "metadata": "json", "key": "text", "payload": "json"}
"""Columns of a table that the connector creates by itself, beside the id."""

_RECORD_PARTS: dict[str, Callable[[Record], Any]] = {
    "position": lambda r: r.position,
    "operation": lambda r: r.operation,
    "metadata": lambda r: r.meta(),
    "key": lambda r: r.key,
    "payload": payload,
}


def _split(text: str) -> list[str]:
    """Splits at commas outside quotes: `.Metadata["a,b"]` is one reference."""
    return [part for part in re.findall(r'(?:[^,"]|"[^"]*")+', text) if part.strip()]
