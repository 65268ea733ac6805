"""Columns of a table of PostgreSQL that are added, or made wider, for rows that do not fit it (`schema: evolve`). What
else a column has stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from conduit_tasks.connectors.column_types import ColumnType, in_postgres, new_kind, of_postgres
from conduit_tasks.connectors.outcome import clip
from conduit_tasks.connectors.postgres.cells import text_of
from conduit_tasks.connectors.postgres.tables import described
from conduit_tasks.errors import DoesNotFit

LONGEST_NAME = 63
"""Limit of the bytes of a name; of a longer one the server would take the beginning."""
NEW = {
    "bool": "boolean",
    "int": "bigint",
    "float": "double precision",
    "decimal": "numeric",
    "text": "text",
    "json": "jsonb",
}
_RIGHT = "42501"
_OF_THE_TABLE = ("0A", "22", "23", "2B", "42", "54")
"""Classes of SQLSTATE of a change that this table does not take: a view needs the column as it is, it is part of the
partition key, there are too many columns. A lock, a time limit or a missing right is not the rows' fault."""


_KEPT = """
SELECT a.attname,
  CASE WHEN a.attcollation <> t.typcollation THEN quote_ident(p.nspname) || '.' || quote_ident(l.collname) END,
  CASE WHEN a.attstorage <> t.typstorage THEN
    CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END END,
  CASE to_jsonb(a) ->> 'attcompression' WHEN 'p' THEN 'pglz' WHEN 'l' THEN 'lz4' END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_namespace p ON p.oid = l.collnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
"""Columns with what the server sets back to the default of the new type: collation, storage, compression."""


def grow(
    execute: Callable[[str], Any],
    connection: Any,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    but: str | None = None,
) -> bool:
    """Changes the table `schema.name` in the transaction under way, so that it takes the rows as far as it can. `but`:
    a field that is to have no column. Returns whether anything was changed.

    The table is locked before it is looked at the second time: another writer may have made a column wider still, which
    must not become narrower again. Raises DoesNotFit if the server does not take the change, which ends the
    transaction; the server's other errors as they are.
    """
    if not _actions(described(connection, name).types, rows, but):
        return False
    quoted = ".".join(map(identifier, name.split(".", 1)))
    try:
        execute(f"LOCK TABLE {quoted} IN ACCESS EXCLUSIVE MODE")
        if actions := _actions(described(connection, name).types, rows, but, _kept(connection, name)):
            # A float is written with all its digits, whatever the server's default is.
            execute("SET LOCAL extra_float_digits = 3")
            execute(f"ALTER TABLE {quoted} {', '.join(actions)}")
    except Exception as error:
        from conduit_tasks.connectors.sql.errors import state_of

        state = state_of(error)
        if state[:2] not in _OF_THE_TABLE or state == _RIGHT:
            raise
        said = clip(str(getattr(error, "orig", error)))
        raise DoesNotFit(f"the columns of {name} cannot be changed for the record: {said}") from error
    return True


def identifier(name: str) -> str:
    """Returns a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def _kept(connection: Any, name: str) -> dict[str, tuple[str | None, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(_KEPT, name.split(".", 1))
        return {column: tuple(kept) for column, *kept in cursor.fetchall()}


def _actions(
    types: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    but: str | None,
    kept: Mapping[str, tuple[str | None, ...]] | None = None,
) -> list[str]:
    """Returns the parts of `ALTER TABLE` that rows need, and that can be."""
    new: dict[str, list[Any]] = {}
    wide: dict[str, ColumnType] = {}
    for row in rows:
        for name, value in row.items():
            if value is None or name == but:
                continue
            if name not in types:
                if name and "\0" not in name and len(name.encode()) <= LONGEST_NAME:
                    new.setdefault(name, []).append(value)
                continue
            type_ = wide.get(name) or of_postgres(types[name])
            if type_ is None:
                continue
            held = text_of(value) if type_.kind == "text" else value
            if type_.unfit(held) and (wider := type_.wider(held)) is not None:
                wide[name] = wider
    return [
        *(f"ADD COLUMN IF NOT EXISTS {identifier(n)} {NEW[new_kind(values)]}" for n, values in new.items()),
        *(action for n, type_ in wide.items() for action in _widened(n, type_, *(kept or {}).get(n, ()))),
    ]


def _widened(
    name: str, type_: ColumnType, collation: str | None = None, storage: str | None = None, packed: str | None = None
) -> Iterator[str]:
    """Yields the parts of `ALTER TABLE` that widen a column, and give it back what it had."""
    column = f"ALTER COLUMN {identifier(name)}"
    yield f"{column} TYPE {in_postgres(type_)}{f' COLLATE {collation}' if collation else ''}{_using(name, type_)}"
    if storage:
        yield f"{column} SET STORAGE {storage}"
    if packed:
        yield f"{column} SET COMPRESSION {packed}"


def _using(name: str, type_: ColumnType) -> str:
    """Returns how the values that are there become those of the wider type: of a `real` the number that it shows, as
    0.1 would be 0.10000000149011612 otherwise."""
    return f" USING {identifier(name)}::text::double precision" if type_.kind == "float" else ""
