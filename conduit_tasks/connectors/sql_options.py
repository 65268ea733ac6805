"""Options of every destination that writes tables in transactions."""

from __future__ import annotations

from conduit_tasks.connectors.base import Option

TRANSACTIONS = (
    Option(
        "index-table",
        "where the number of the last row is kept, for effectively-once and pipes with an index; "
        "optionally with its schema before a dot",
        default="conduit_index",
    ),
    Option("chunk", "rows per transaction", default="10000"),
    Option("lock-timeout", "how long a write waits for a lock", default="10s"),
)
