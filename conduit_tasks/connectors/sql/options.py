"""Options of every destination that writes tables in transactions: `index-table`, `chunk`, `lock-timeout`."""

from __future__ import annotations

from collections.abc import Mapping

from conduit_tasks.connectors.base import Option
from conduit_tasks.errors import ConfigError

INDEX = "index-table"
TRANSACTIONS = (
    Option(
        INDEX,
        "where the number of the last row is kept, for effectively-once and pipes with an index; "
        "optionally with its schema before a dot",
        default="conduit_index",
    ),
    Option("chunk", "rows per transaction", default="10000"),
    Option("lock-timeout", "how long a write waits for a lock", default="10s"),
)


def index_table(settings: Mapping[str, str], plugin: str) -> tuple[str | None, str]:
    """Returns the schema, if one is given, and the name of the index table. Raises ConfigError."""
    schema, dot, name = settings[INDEX].strip().rpartition(".")
    if not name or (dot and not schema):
        raise ConfigError(f"{plugin}: option '{INDEX}' names no table; write a name, or schema.name")
    return schema or None, name
