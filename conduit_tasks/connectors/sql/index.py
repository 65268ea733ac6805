"""Receiver of a monotonic pipe (SEMANTICS O5) that keeps its index in the table's own database.

The number of the last row is stored in the transaction of the rows, so that a write that comes again is dropped
(effectively-once, B8).
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from conduit_tasks.connectors.rows import RowNumbers
from conduit_tasks.connectors.sql.creation import create


class SqlIndex:
    """One table for every pipeline that writes to this database: pipeline, destination, lane, epoch → number."""

    def __init__(self, name: str, schema: str | None, dialect: str) -> None:
        # Names that differ in case only are different names, which MySQL's default does not say.
        text = sa.String(128, collation="utf8mb4_bin" if dialect == "mysql" else None)
        key = [sa.Column(n, text, primary_key=True) for n in ("pipeline", "destination", "lane")]
        epoch = sa.Column("epoch", sa.BigInteger, primary_key=True, autoincrement=False)
        number = sa.Column("number", sa.BigInteger, nullable=False)
        self._table = sa.Table(name, sa.MetaData(), *key, epoch, number, schema=schema, mysql_engine="InnoDB")
        self._dialect = dialect
        self._created = False

    def create(self, engine: sa.Engine) -> None:
        """Creates the table, once per engine; two attempts may create it at the same time."""
        if not self._created:
            with engine.begin() as connection:
                create(connection, self._table)
            self._created = True

    def advance(self, connection: sa.Connection, numbers: RowNumbers) -> int:
        """Receives these numbers, and returns how many of them, from the first, were written before. The other rows are
        to be written in this transaction. Until it ends, no other transaction gets past this point, not even that of an
        abandoned attempt."""
        where = {"pipeline": numbers.pipeline, "destination": numbers.destination, "lane": "", "epoch": numbers.epoch}
        table = self._table
        # A write comes first, so that SQLite takes its lock; PostgreSQL waits here for a transaction that inserts the
        # same row.
        connection.execute(self._first().values(**where, number=0))
        mine = sa.and_(*(table.c[name] == value for name, value in where.items()))
        current = connection.execute(sa.select(table.c.number).where(mine).with_for_update()).scalar_one()
        dropped, last = numbers.received(current)
        if last != current:
            connection.execute(sa.update(table).where(mine).values(number=last))
        return dropped

    def _first(self) -> Any:
        """Returns the statement that inserts a row unless it is there."""
        if self._dialect == "mysql":
            from sqlalchemy.dialects.mysql import insert as insert_mysql

            made = insert_mysql(self._table)
            return made.on_duplicate_key_update(number=self._table.c.number)
        if self._dialect == "sqlite":
            from sqlalchemy.dialects.sqlite import insert
        else:
            from sqlalchemy.dialects.postgresql import insert  # type: ignore[assignment]
        return insert(self._table).on_conflict_do_nothing()
