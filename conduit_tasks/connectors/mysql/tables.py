"""Tables as the server's `information_schema` has them, and their names: option `tables`, `opencdc.collection`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.errors import ConfigError

WHOLE = ("tinyint", "smallint", "mediumint", "int", "bigint")
BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
TIMES = ("date", "datetime", "timestamp", "time")
SHAPES = (
    *("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon"),
    *("geometrycollection", "geomcollection"),
)
OTHERS = ("decimal", "float", "double", "bit", "year", "enum", "set", "json")
KNOWN = frozenset((*WHOLE, *BYTES, *TEXTS, *TIMES, *SHAPES, *OTHERS))
"""Types whose values are read and written exactly."""

_LABEL = re.compile(r"'((?:[^']|'')*)'")
_COLUMNS = """
SELECT column_name, lower(data_type), column_type, character_maximum_length, character_set_name, numeric_scale,
  datetime_precision, coalesce(generation_expression, '') <> ''
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_UNIQUE = """
SELECT index_name, CASE WHEN sub_part IS NULL THEN column_name END FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index
"""
_TABLE = """
SELECT t.table_schema, t.table_name, t.table_type, coalesce(e.transactions, 'NO') FROM information_schema.tables t
LEFT JOIN information_schema.engines e ON e.engine = t.engine WHERE t.table_schema = %s AND t.table_name = %s
"""


@dataclass(frozen=True)
class Column:
    """A column. `length`: characters or bytes that it takes at most; `scale`: digits behind the point, of a number or
    of seconds; `labels`: of an enum or a set; `made`: the server makes its values; `packed`: stored compressed."""

    name: str
    type: str
    unsigned: bool = False
    length: int | None = None
    charset: str | None = None
    scale: int | None = None
    labels: tuple[str, ...] = ()
    made: bool = False
    packed: bool = False


@dataclass(frozen=True)
class Table:
    """A table. `key`: columns of the primary key; `unique`: columns of every unique index, the primary key's too."""

    schema: str
    name: str
    columns: dict[str, Column]
    key: tuple[str, ...]
    unique: frozenset[frozenset[str]]
    transactions: bool = True
    versioned: bool = False

    @property
    def full(self) -> str:
        return f"{self.schema}.{self.name}"


def collection(schema: str, name: str, here: str) -> str:
    """Returns the value of `opencdc.collection`: with the database's name unless it is the URL's."""
    return name if schema == here else f"{schema}.{name}"


def parted(name: str, here: str) -> tuple[str, str]:
    """Returns the database and the name of a table. Raises ConfigError if neither it nor the URL names a database."""
    schema, dot, table = name.partition(".")
    if not dot:
        schema, table = here, name
    if not schema:
        raise ConfigError(f"mysql: name the database of table {name}: database.table, or in option 'url'")
    return schema, table


def resolved(connection: Any, names: Sequence[str], here: str) -> list[str]:
    """Returns tables as `database.table`; `*` means all of the URL's database. Raises ConfigError if there is none."""
    if list(names) != ["*"]:
        return list(dict.fromkeys(described(connection, *parted(name, here)).full for name in names))
    if not here:
        raise ConfigError("mysql: option 'tables' is *, and option 'url' names no database")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE' "
            "ORDER BY table_name",
            [here],
        )
        found = [f"{here}.{name}" for (name,) in cursor.fetchall()]
    if not found:
        raise ConfigError(f"mysql: option 'tables': there is no table in database {here}")
    return found


def described(connection: Any, schema: str, name: str) -> Table:
    """Returns a table. Raises ConfigError if it is not there."""
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS, [schema, name])
        columns = cursor.fetchall()
        cursor.execute(_UNIQUE, [schema, name])
        indexes: dict[str, list[str | None]] = {}
        for index, column in cursor.fetchall():
            indexes.setdefault(index, []).append(column)
        cursor.execute(_TABLE, [schema, name])
        found = cursor.fetchone()
    if not columns or found is None:
        raise ConfigError(f"mysql: there is no table {schema}.{name}, or no right to see it; name it as database.table")
    made = {row[0]: _column(row) for row in columns}
    # A part of an index may be an expression, which has no column.
    unique = frozenset(frozenset(str(column) for column in index) for index in indexes.values())
    primary = indexes.get("PRIMARY", [])
    # A key of the first letters of a column does not tell rows apart.
    key = () if None in primary else tuple(str(column) for column in primary)
    # The server may write the names otherwise than they were given (lower_case_table_names).
    schema, name, kind, transactions = found
    return Table(schema, name, made, key, unique, kind == "VIEW" or transactions == "YES", "VERSIONED" in kind)


def _column(row: Sequence[Any]) -> Column:
    name, type_, whole, length, charset, scale, precision, made = row
    labels = ()
    if type_ in ("enum", "set"):
        labels = tuple(each.replace("''", "'") for each in _LABEL.findall(whole))
    if type_ == "bit":
        length = int(re.sub(r"\D", "", whole) or 1)
    return Column(
        name,
        type_,
        "unsigned" in whole,
        None if length is None else int(length),
        charset,
        precision if type_ in TIMES else scale,
        labels,
        bool(made),
        "COMPRESSED" in whole,
    )


def check_known(table: Table) -> None:
    """Raises ConfigError if a column's values cannot be read as they are."""
    for column in table.columns.values():
        if (column.type not in KNOWN or column.packed) and not column.made:
            what = "compressed" if column.packed else f"of type {column.type}"
            raise ConfigError(
                f"mysql: column {column.name} of {table.full} is {what}, which is not supported: the "
                "log has other bytes for it than a query; change its type, or leave the table out of 'tables'"
            )
