"""When a run is to start that need not wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def at_once() -> datetime:
    """The `run_after` of such a run. Airflow starts runs whose time has come by its database's clock, and SQLite's
    `CURRENT_TIMESTAMP` has whole seconds: what is due now would wait for the next one."""
    return datetime.now(UTC) - timedelta(seconds=1)
