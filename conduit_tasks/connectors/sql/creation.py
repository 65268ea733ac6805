"""Creation of a table that several tasks may miss at once."""

from __future__ import annotations

import sqlalchemy as sa


def create(connection: sa.Connection, table: sa.Table) -> None:
    """Creates the table unless it is there. Raises sqlalchemy's DBAPIError.

    PostgreSQL refuses `CREATE TABLE IF NOT EXISTS` (unique violation in pg_type, or duplicate object) if another
    transaction creates the same table meanwhile; then the table is there.
    """
    statement = sa.schema.CreateTable(table, if_not_exists=True)
    if connection.dialect.name != "postgresql":
        connection.execute(statement)
        return
    try:
        with connection.begin_nested():
            connection.execute(statement)
    except sa.exc.DBAPIError:
        if not sa.inspect(connection).has_table(table.name, schema=table.schema):
            raise
