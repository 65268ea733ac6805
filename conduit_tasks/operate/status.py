"""Status of a pipeline: one plain document for the CLI, the demo's account and the API."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.forgotten import lost


def snapshot(pipeline_id: str) -> dict[str, Any]:
    """Returns a pipeline's state as JSON types; asks the broker a few questions, whatever the number of events."""
    with opened(pipeline_id, "status") as context:
        return describe(context)


def describe(context: Context) -> dict[str, Any]:
    """Describes the state, see `snapshot`. `behind` counts micro-batches, `dead` entries of the dead-letter index;
    `lost` says what to do if Redis knows nothing of the pipeline, though its spool does."""
    broker, pipeline = context.broker, context.pipeline
    status = broker.lifecycle.status()
    unsealed = broker.micro_batches.unsealed()
    sealed, totals = broker.micro_batches.latest_sealed(), broker.micro_batches.totals()
    failing, attempts = broker.failures.troubles(*broker.lifecycle.nodes())
    destinations = []
    for d in pipeline.destinations:
        state = broker.deliveries.get(d.id)
        destinations.append(
            {
                "id": d.id,
                "plugin": d.plugin,
                "status": state.status,
                "error": asdict(state.error) if state.error else None,
                "cursor": state.cursor,
                "behind": sealed - state.cursor,
                **state.counters,
                "dead": broker.dead_letters.count(d.id),
                "parked_keys": len(broker.redrives.parked(d.id)),
                "attempts": attempts.get(d.node, 0),
                "breaker": asdict(breaker) if (breaker := broker.breakers.get(d.id, d.delivery.breaker)) else None,
                "confirmed_at": state.confirmed_at,
            }
        )
    return {
        "pipeline": pipeline.id,
        "status": status.status,
        "isolate": pipeline.isolate,
        "error": asdict(status.error) if status.error else None,
        "lost": str(lost(context) or "") or None,
        "deadline": status.deadline,
        "overdue": status.overdue,
        "recovering": [asdict(each) for each in failing],
        "sealed": sealed,
        "unsealed": {"number": unsealed.number, "missing": unsealed.missing} if unsealed else None,
        "backlog": asdict(broker.deliveries.backlog([d.id for d in pipeline.destinations])),
        "totals": totals,
        "dead_before_fan_out": broker.dead_letters.count(""),
        "sources": [
            {
                "id": s.id,
                "plugin": s.plugin,
                "read": totals.get(f"{s.node}/read", 0),
                "filtered": totals.get(f"{s.node}/filtered", 0),
                "nacked": totals.get(f"{s.node}/nacked", 0),
                "skipped": totals.get(f"{s.node}/skipped", 0),
                "planned": broker.positions.planned(s.id),
                "acked": broker.positions.acked(s.id),
            }
            for s in pipeline.sources
        ],
        "destinations": destinations,
    }
