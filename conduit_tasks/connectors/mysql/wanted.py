"""Tables whose changes are wanted, by names as the server compares them (`lower_case_table_names`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_AS_WRITTEN = 2
"""Value of `lower_case_table_names`: the log has names as they were written, and they are equal in any case."""


@dataclass(frozen=True)
class Tables:
    """Tables whose rows are wanted: their names, or all of a database. `case`: what the server makes of names in
    another case (`lower_case_table_names`). If it is not 0, all names are in lower case here."""

    names: frozenset[tuple[str, str]]
    every: str = ""
    case: int = 0

    def __contains__(self, name: tuple[str, str]) -> bool:
        schema, table = (part.lower() for part in name) if self.case else name
        return schema == self.every if self.every else (schema, table) in self.names

    @property
    def filters(self) -> dict[str, Any]:
        """Names that the library skips before it looks at them: tables of all databases that have such a name."""
        if self.case == _AS_WRITTEN:
            return {}
        if self.every:
            return {"only_schemas": [self.every]}
        return {"only_schemas": sorted({s for s, _ in self.names}), "only_tables": sorted({n for _, n in self.names})}


def wanted(connection: Any, names: Collection[str], database: str) -> Tables:
    """Returns the tables of option `tables`. Raises ConfigError."""
    from conduit_tasks.connectors.mysql.tables import parted

    with connection.cursor() as cursor:
        cursor.execute("SELECT @@global.lower_case_table_names")
        case = int(cursor.fetchone()[0])
    if case:
        names, database = [name.lower() for name in names], database.lower()
    if list(names) == ["*"]:
        return Tables(frozenset(), database, case)
    return Tables(frozenset(parted(name, database) for name in names), "", case)
