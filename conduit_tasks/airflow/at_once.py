"""Time at which a run is to start that need not wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


def at_once() -> datetime:
    """Returns the `run_after` of such a run. Airflow starts due runs by its database's clock, and SQLite's
    `CURRENT_TIMESTAMP` has whole seconds: a run that is due now would wait for the next second."""
    return datetime.now(UTC) - timedelta(seconds=1)
