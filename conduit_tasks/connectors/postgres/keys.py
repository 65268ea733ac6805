"""Keys of changes that are the same to their table, however they are written."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from conduit_tasks.connectors.postgres.client import library
from conduit_tasks.connectors.postgres.staged import copy_rows, staged
from conduit_tasks.connectors.postgres.tables import Table

Key = tuple[str, ...]
"""The texts of a key's columns."""

_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_WRITTEN_ONE_WAY = {
    "smallint": _WHOLE,
    "integer": _WHOLE,
    "bigint": _WHOLE,
    "numeric": _WHOLE,
    "boolean": re.compile("true|false"),
    "uuid": re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "bytea": re.compile(r"\\x[0-9a-f]*"),
}
"""Type → texts that are equal only if the values are."""
_LIMITED = re.compile(r"character varying\((\d+)\)")


def spellings(cursor: Any, table: Table, names: Sequence[str], keys: Collection[Key]) -> dict[Key, Key]:
    """Returns key → the one of `keys` that stands for all that are equal to it; keys that stand for themselves are left
    out.

    Keys are compared here if their texts decide it (whole numbers, UUIDs, text); otherwise the server is asked, which
    alone knows its types and collations: `1.0` and `1.00`, times in several zones, `citext`. It raises DataError if a
    text is not of its type.
    """
    if all(_plain(text, name, table) for key in keys for name, text in zip(names, key, strict=True)):
        return {}
    sql = library().sql
    every = list(keys)
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    with staged(cursor, table, names, numbered=True) as place:
        copy_rows(cursor, place, ["conduit_n", *names], ((str(n), *key) for n, key in enumerate(every)))
        statement = sql.SQL("SELECT conduit_n, min(conduit_n) OVER (PARTITION BY {}) FROM {}")
        cursor.execute(statement.format(columns, place))
        found = cursor.fetchall()
    return {every[n]: every[first] for n, first in found if n != first}


def _plain(text: str, name: str, table: Table) -> bool:
    type_ = table.types[name]
    if form := _WRITTEN_ONE_WAY.get(type_):
        return form.fullmatch(text) is not None
    if name in table.folded:
        return False
    limit = _LIMITED.fullmatch(type_)
    return type_ in ("text", "character varying") or (limit is not None and len(text) <= int(limit[1]))
