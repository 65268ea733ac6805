"""Events of a destination's assets: the counts and micro-batches that they tell of a run, and none if it delivered
nothing (docs/assets.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

MOST = 100
"""Micro-batches that an event lists; of more it says the first, the last and the number."""


def tell_assets(
    pipeline_id: str, destination: str, run: str, context: Mapping[str, Any], outlets: Sequence[Any]
) -> list[Any]:
    """Returns the outlets of a task that has succeeded: none if its run delivered nothing, as Airflow emits an event
    for each. Puts counts, interval and micro-batches into the events' extra."""
    extra = of_run(pipeline_id, destination, run, context.get("dag_run"))
    if extra is None:
        return []
    for outlet in outlets:
        context["outlet_events"][outlet].extra = extra
    return list(outlets)


def of_run(pipeline_id: str, destination: str, run_id: str, dag_run: Any = None) -> dict[str, Any] | None:
    """Returns what a run has delivered to a destination; None if nothing."""
    from contextlib import closing

    from conduit_tasks.micro_batch.context import open_broker

    with closing(open_broker(pipeline_id, initialise=False)) as broker:
        counts, numbers = broker.redeliveries.delivered_by(destination, run_id)
    if not counts.get("delivered", 0) + counts.get("redelivered", 0):
        return None
    began = getattr(dag_run, "start_date", None)
    return {
        "pipeline": pipeline_id,
        "destination": destination,
        "run": run_id,
        "counts": counts,
        "interval": {"from": began.isoformat() if began else None, "to": datetime.now(UTC).isoformat()},
        "micro_batches": {"first": numbers[0], "last": numbers[-1], "number": len(numbers), "some": numbers[:MOST]},
    }
