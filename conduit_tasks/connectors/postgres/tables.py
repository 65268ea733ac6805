"""Tables as the catalogue has them, and their rows in the order of the primary key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conduit_tasks.connectors.portion import Portion
from conduit_tasks.connectors.postgres.client import library
from conduit_tasks.errors import ConfigError

FETCH = 2_000
"""Rows fetched at a time."""


_COLUMNS = """
SELECT a.attname, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod), array_position(i.indkey::int2[], a.attnum),
  coalesce(to_jsonb(l) ->> 'collisdeterministic', 'true') = 'false', (
    WITH RECURSIVE within AS (
      SELECT d.typbasetype, d.typtypmod, 1 AS depth FROM pg_type d WHERE d.oid = a.atttypid AND d.typtype = 'd'
      UNION ALL
      SELECT d.typbasetype, d.typtypmod, depth + 1 FROM within w JOIN pg_type d ON d.oid = w.typbasetype
      WHERE d.typtype = 'd'
    )
    SELECT format_type(typbasetype, typtypmod) FROM within ORDER BY depth DESC LIMIT 1
  )
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p', 'f', 'v', 'm')
  AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""


@dataclass(frozen=True)
class Table:
    """A table. `columns`: name → oid of the type, without generated ones; `types`: name → type as SQL writes it;
    `values`: name → type of the values, which is another one if the column's type is a domain; `folded`: columns whose
    collation treats different texts as equal."""

    schema: str
    name: str
    columns: dict[str, int]
    types: dict[str, str]
    values: dict[str, str]
    key: tuple[str, ...]
    folded: frozenset[str] = frozenset()

    @property
    def collection(self) -> str:
        """Value of `opencdc.collection`: as in Conduit, without the schema if it is `public`."""
        return collection(self.schema, self.name)


def collection(schema: str, name: str) -> str:
    return name if schema == "public" else f"{schema}.{name}"


def resolved(connection: Any, names: Sequence[str]) -> list[str]:
    """Returns tables as `schema.name`; `*` means all of the schema `public`. Raises ConfigError if there is none."""
    with connection.cursor() as cursor:
        if list(names) == ["*"]:
            cursor.execute(
                "SELECT 'public.' || relname FROM pg_class WHERE relnamespace = 'public'::regnamespace "
                "AND relkind IN ('r', 'p') AND NOT relispartition AND relpersistence = 'p' ORDER BY relname"
            )
            found = [row[0] for row in cursor]
            if not found:
                raise ConfigError("postgres: option 'tables': there is no table in the schema public")
            return found
    out = [name if "." in name else f"public.{name}" for name in names]
    for name in out:
        described(connection, name)
    return out


def described(connection: Any, name: str) -> Table:
    """Returns a table by `schema.name`. Raises ConfigError if it is not there."""
    schema, _, table = name.partition(".")
    with connection.cursor() as cursor:
        cursor.execute(
            _COLUMNS,
            [schema, table],
        )
        rows = cursor.fetchall()
    if not rows:
        raise ConfigError(f"postgres: there is no table {name}, or no right to see it; name it as schema.table")
    key = sorted((place, column) for column, _, _, place, *_ in rows if place is not None)
    columns, types = {r[0]: r[1] for r in rows}, {r[0]: r[2] for r in rows}
    values, folded = {r[0]: r[5] or r[2] for r in rows}, frozenset(r[0] for r in rows if r[4])
    return Table(schema, table, columns, types, values, tuple(c for _, c in key), folded)


def rows_after(connection: Any, table: Table, after: Sequence[str] | None, most: int | None) -> Iterator[list[Any]]:
    """Yields rows in the order of the key, behind the key `after`, their values as text in the order of the columns."""
    sql, extensions = library().sql, library().extensions
    cells = sql.SQL(", ").join(sql.Identifier(c) for c in table.columns)
    keys = sql.SQL(", ").join(sql.Identifier(c) for c in table.key)
    statement = sql.SQL("SELECT {} FROM {}").format(cells, sql.Identifier(table.schema, table.name))
    if after is not None:
        values = sql.SQL(", ").join(
            sql.SQL("{}::" + table.types[c]).format(sql.Literal(text)) for c, text in zip(table.key, after, strict=True)
        )
        statement += sql.SQL(" WHERE ({}) > ({})").format(keys, values)
    statement += sql.SQL(" ORDER BY {}").format(keys)
    if most is not None:
        statement += sql.SQL(" LIMIT {}").format(sql.Literal(most))
    connection.autocommit = False
    try:
        with connection.cursor("conduit_rows") as cursor:
            portion = Portion(FETCH)
            cursor.itersize = portion.size
            # Texts as the server writes them; a cast to text does not always give them: booleans, padded text.
            extensions.register_type(
                extensions.new_type(tuple(set(table.columns.values())), "TEXT", lambda text, _: text), cursor
            )
            cursor.execute(statement)
            for row in cursor:
                portion.came(1, sum(len(text) for text in row if text is not None))
                cursor.itersize = portion.size
                yield list(row)
    finally:
        if not connection.closed:
            connection.rollback()
            connection.autocommit = True
