"""Temporary tables with some columns of a table, filled by `COPY`: their values have the table's own types.

A cast would not do: `'abcd'::varchar(3)` is `abc`, but the table refuses it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from conduit_tasks.connectors.postgres.cells import copy_line
from conduit_tasks.connectors.postgres.client import library
from conduit_tasks.connectors.postgres.tables import Table


@contextmanager
def staged(cursor: Any, table: Table, names: Sequence[str], *, numbered: bool = False) -> Iterator[Any]:
    """Yields an empty temporary table, as an identifier of SQL, that is dropped at the end; `numbered`: with a column
    `conduit_n` before the others."""
    sql = library().sql
    place = sql.Identifier("conduit_staged")
    columns = [*([sql.SQL("0 AS conduit_n")] if numbered else []), *map(sql.Identifier, names)]
    statement = sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA")
    cursor.execute(statement.format(place, sql.SQL(", ").join(columns), identified(table)))
    yield place
    cursor.execute(sql.SQL("DROP TABLE {}").format(place))


def copy_rows(cursor: Any, into: Any, names: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Copies rows of texts, in the order of `names`, into a table."""
    sql = library().sql
    text = "".join(copy_line(list(row)) for row in rows)
    columns = sql.SQL(", ").join(map(sql.Identifier, names))
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(into, columns).as_string(cursor)
    cursor.copy_expert(statement, io.BytesIO(text.encode()))


def identified(table: Table) -> Any:
    return library().sql.Identifier(table.schema, table.name)
