"""Rows of the binary log: bytes in, values out, exactly as `values` has them.

The reader of the log (`pymysqlreplication`) reads events and tables. Its values are not taken: it gives None for a zero
date and for an empty set, decodes bytes as text, and cuts the zeros of BINARY.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from conduit_tasks.connectors.mysql.charsets import UTF8, Charsets, Decode
from conduit_tasks.connectors.mysql.documents import document
from conduit_tasks.connectors.mysql.tables import Table
from conduit_tasks.connectors.mysql.values import iso, of_bytes, short
from conduit_tasks.errors import ConfigError, SourceError

TINY, SHORT, LONG, FLOAT, DOUBLE = 1, 2, 3, 4, 5
LONGLONG, INT24, DATE, YEAR, VARCHAR, BIT = 8, 9, 10, 13, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
JSON, DECIMAL, ENUM, SET, BLOB, STRING, GEOMETRY = 245, 246, 247, 248, 252, 254, 255

_WHOLE = {TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8}
_TEXTS = (STRING, 253, VARCHAR, BLOB)
_KNOWN = {
    *(*_WHOLE, FLOAT, DOUBLE, DATE, YEAR, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2),
    *(JSON, DECIMAL, ENUM, SET, BLOB, STRING, GEOMETRY),
}
_TYPES = {
    **{"tinyint": TINY, "smallint": SHORT, "mediumint": INT24, "int": LONG, "bigint": LONGLONG, "float": FLOAT},
    **{"double": DOUBLE, "decimal": DECIMAL, "year": YEAR, "date": DATE, "time": TIME2, "datetime": DATETIME2},
    **{"timestamp": TIMESTAMP2, "bit": BIT, "char": STRING, "binary": STRING, "varchar": VARCHAR},
    **{"varbinary": VARCHAR, "enum": ENUM, "set": SET, "json": JSON},
    **dict.fromkeys(("tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob"), BLOB),
}
_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
"""Bytes of up to nine digits of a decimal."""
_BINARY = "binary"
METADATA = (
    "SET GLOBAL binlog_row_metadata = FULL (MariaDB 10.5, MySQL 8.0.14), and begin again under a new connector id, "
    "which takes a snapshot first"
)


class Undecodable(ValueError):
    """A value of a row cannot be decoded."""


@dataclass(frozen=True)
class Field:
    """A column as the log has it. `charset`: `binary` for bytes; `column`: its numbers as the library has them;
    `decode`: of its texts."""

    name: str
    type: int
    column: Any
    unsigned: bool = False
    charset: str = _BINARY
    labels: tuple[str, ...] = ()
    decode: Decode = bytes.decode


@dataclass(frozen=True)
class Shape:
    """A table as the rows that follow have it. `key`: columns of its primary key; `hidden`: columns whose values the
    server makes, which are left out."""

    schema: str
    name: str
    fields: tuple[Field, ...]
    key: tuple[str, ...]
    hidden: frozenset[str] = frozenset()


def shape(event: Any, charsets: Charsets, table: Table | None) -> Shape:
    """Returns the table of a table-map event. `table`: as it is now, for what the log does not say. Raises ConfigError
    if that is too much, SourceError if it cannot be read."""
    full = f"{event.schema}.{event.table}"
    if unknown := sorted({column.type for column in event.columns} - _KNOWN):
        raise SourceError(
            f"mysql: {full} has a column that the log holds in a form ({unknown[0]}) that is not read: compressed, a "
            "vector, or a time of before MySQL 5.6. Change its type, or leave the table out of 'tables'"
        )
    names = event.optional_metadata.column_name_list
    hidden = frozenset(c.name for c in table.columns.values() if c.made) if table is not None else frozenset[str]()
    if names:
        named = _named(event, charsets, table)
        places = event.optional_metadata.simple_primary_key_list or [*event.optional_metadata.primary_keys_with_prefix]
        return Shape(event.schema, event.table, named, tuple(names[place] for place in places), hidden)
    if table is None:
        raise ConfigError(f"mysql: the log has no names of columns, and {full} is not there any more. {METADATA}")
    columns = list(table.columns.values())
    types = [_TYPES.get(column.type, GEOMETRY) for column in columns]
    if types != [column.type for column in event.columns]:
        raise ConfigError(
            f"mysql: {full} had other columns when these changes were made, and the log has no names of columns. "
            f"{METADATA}"
        )
    fields = [
        Field(c.name, type_, of, c.unsigned, c.charset or _BINARY, c.labels)
        for c, type_, of in zip(columns, types, event.columns)
    ]
    return Shape(event.schema, event.table, _checked(fields, full, charsets), table.key, hidden)


def _named(event: Any, charsets: Charsets, table: Table | None) -> tuple[Field, ...]:
    """Returns the columns as the log describes them (binlog_row_metadata = FULL)."""
    told = event.optional_metadata
    texts, labelled = iter(told.charset_collation_list or ()), iter(told.enum_and_set_collation_list or ())
    enums, sets = iter(told.set_enum_str_value_list or ()), iter(told.set_str_value_list or ())
    fields = []
    for n, column in enumerate(event.columns):
        name, charset = told.column_name_list[n], _BINARY
        labels: tuple[str, ...] = ()
        if column.type in _TEXTS or (column.type == GEOMETRY and event.dbms == "mariadb"):
            charset = charsets.name(next(texts))
        elif column.type in (ENUM, SET):
            charset = charsets.name(next(labelled))
            labels = _labels(tuple(next(enums if column.type == ENUM else sets)), charset, name, table)
        unsigned = bool(told.unsigned_column_list and told.unsigned_column_list[n])
        fields.append(Field(name, column.type, column, unsigned, charset, labels))
    return _checked(fields, f"{event.schema}.{event.table}", charsets)


def _labels(labels: tuple[str, ...], charset: str, name: str, table: Table | None) -> tuple[str, ...]:
    """Returns the labels of an enum or a set. The library reads them as UTF-8, and gives "" for those that are not:
    then the table says what they are, if it has as many."""
    if charset in (*UTF8, "ascii") or all(label and label.isascii() for label in labels):
        return labels
    now = table.columns.get(name) if table is not None else None
    if now is None or len(now.labels) != len(labels):
        raise ConfigError(
            f"mysql: the labels of column {name} are in {charset}, and the table has others now; ALTER it to utf8mb4 "
            "and begin again under a new connector id, which takes a snapshot first"
        )
    return now.labels


def _checked(fields: Sequence[Field], full: str, charsets: Charsets) -> tuple[Field, ...]:
    """Returns the columns with what decodes their texts. Raises ConfigError."""
    found = []
    for field in fields:
        if field.charset == _BINARY:
            found.append(field)
        elif decode := charsets.decode(field.charset):
            found.append(replace(field, decode=decode))
        else:
            raise ConfigError(
                f"mysql: column {field.name} of {full} has charset {field.charset or 'of an unknown number'}, which "
                "is not read from the log; ALTER it to utf8mb4, or leave the table out of 'tables'"
            )
    return tuple(found)


def row(data: bytes, at: int, of: Shape, present: bytes) -> tuple[dict[str, Any], int]:
    """Returns one row at an offset, by name, and the offset behind it. Raises SourceError if the row is not logged
    whole, Undecodable."""
    count = len(of.fields)
    if int.from_bytes(present, "little") & ((1 << count) - 1) != (1 << count) - 1:
        raise SourceError(
            f"mysql: changes of {of.schema}.{of.name} are logged without all columns. SET GLOBAL binlog_row_image = "
            "FULL, also in the session that writes, and begin again under a new connector id, which takes a snapshot "
            "first"
        )
    size = (count + 7) // 8
    nulls = int.from_bytes(data[at : at + size], "little")
    at += size
    values: dict[str, Any] = {}
    for n, field in enumerate(of.fields):
        value = None
        if not nulls >> n & 1:
            try:
                value, at = _value(data, at, field)
                if at > len(data):
                    raise ValueError("it ends before its end")
            except (ValueError, LookupError, ArithmeticError, TypeError, struct.error, RecursionError) as error:
                how = f"type {field.type} of the log, charset {field.charset}"
                raise Undecodable(f"column {field.name} ({how}): {type(error).__name__}") from error
        if field.name not in of.hidden:
            values[field.name] = value
    return values, at


def _value(data: bytes, at: int, field: Field) -> tuple[Any, int]:  # noqa: PLR0911 - one for each kind of type
    type_, column = field.type, field.column
    if size := _WHOLE.get(type_):
        return int.from_bytes(data[at : at + size], "little", signed=not field.unsigned), at + size
    if type_ in (FLOAT, DOUBLE):
        size, form = (4, "<f") if type_ == FLOAT else (8, "<d")
        (number,) = struct.unpack_from(form, data, at)
        return short(number) if type_ == FLOAT else number, at + size
    if type_ == DECIMAL:
        return _decimal(data, at, column.precision, column.decimals)
    if type_ == YEAR:
        return data[at] and data[at] + 1900, at + 1
    if type_ == BIT:
        return int.from_bytes(data[at : at + column.bytes], "big"), at + column.bytes
    if type_ in (DATE, TIMESTAMP2, DATETIME2, TIME2):
        return _time(data, at, type_, 0 if type_ == DATE else column.fsp)
    if type_ in (ENUM, SET):
        number = int.from_bytes(data[at : at + column.size], "little")
        at += column.size
        if type_ == SET:
            return ",".join(label for n, label in enumerate(field.labels) if number >> n & 1), at
        return field.labels[number - 1] if number else "", at
    size = column.length_size if type_ in (BLOB, GEOMETRY, JSON) else 1 + (column.max_length > 255)
    length = int.from_bytes(data[at : at + size], "little")
    text = data[at + size : at + size + length]
    at += size + length
    if type_ == JSON:
        return document(text), at
    if type_ == GEOMETRY or field.charset == _BINARY:
        # The zeros at the end of a BINARY are not in the log.
        return of_bytes(text.ljust(column.max_length, b"\0") if type_ == STRING else text), at
    return field.decode(text), at


def _decimal(data: bytes, at: int, precision: int, scale: int) -> tuple[str, int]:
    from pymysqlreplication.util.bytes import parse_decimal_from_bytes

    (whole, more), (parts, rest) = divmod(precision - scale, 9), divmod(scale, 9)
    size = 4 * (whole + parts) + _DIGITS[more] + _DIGITS[rest]
    number: Decimal = parse_decimal_from_bytes(data[at : at + size], precision, scale)
    return format(number, "f"), at + size


def _time(data: bytes, at: int, type_: int, digits: int) -> tuple[str, int]:
    """Returns a time as the server writes it in UTC, a date and time in ISO 8601."""
    if type_ == DATE:
        number = int.from_bytes(data[at : at + 3], "little")
        return f"{number >> 9:04d}-{number >> 5 & 15:02d}-{number & 31:02d}", at + 3
    size = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}[type_]
    more = (digits + 1) // 2
    number = int.from_bytes(data[at : at + size + more], "big")
    at += size + more
    sign = ""
    if type_ != TIMESTAMP2:
        number -= 1 << (8 * (size + more) - 1)
        sign, number = ("-" if number < 0 else ""), abs(number)
    number, part = number >> 8 * more, number & ((1 << 8 * more) - 1)
    fraction = f".{part:0{2 * more}d}"[: digits + 1] if digits else ""
    clock = f"{number >> 6 & 63:02d}:{number & 63:02d}{fraction}"
    if type_ == TIME2:
        return f"{sign}{number >> 12 & 1023:02d}:{clock}", at
    if type_ == DATETIME2:
        month, day = number >> 22, number >> 17 & 31
        text = f"{month // 13:04d}-{month % 13:02d}-{day:02d} {number >> 12 & 31:02d}:{clock}"
        return iso(text, utc=False), at
    if not number:
        return f"0000-00-00 00:00:00{fraction}", at
    import datetime as dt

    moment = dt.datetime.fromtimestamp(number, dt.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z", at
