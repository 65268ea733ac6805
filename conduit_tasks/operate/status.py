"""Status of a pipeline: one plain document for the CLI, the demo's account and the API."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.forgotten import lost
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.state import MicroBatch


def snapshot(pipeline_id: str) -> dict[str, Any]:
    """Returns a pipeline's state as JSON types; asks the broker a few questions, whatever the number of events."""
    with opened(pipeline_id, "status") as context:
        return describe(context)


def describe(context: Context) -> dict[str, Any]:
    """Describes the state, see `snapshot`. `behind` counts micro-batches, `dead` entries of the dead-letter index;
    `lag` are the sealed records that a destination has not confirmed, `lag.bytes` those of whole micro-batches, and
    `lag.age` the seconds since the oldest of them was sealed; `lost` says what to do if Redis knows nothing of the
    pipeline, though its spool does; `at` is the time by the server's clock."""
    broker, pipeline = context.broker, context.pipeline
    now = broker.access.now()
    status = broker.lifecycle.status()
    unsealed = broker.micro_batches.unsealed()
    sealed, totals = broker.micro_batches.latest_sealed(), broker.micro_batches.totals()
    failing, attempts = broker.failures.troubles(*broker.lifecycle.nodes())
    destinations = []
    for d in pipeline.destinations:
        state, backlog = broker.deliveries.get(d.id), broker.deliveries.backlog([d.id])
        destinations.append(
            {
                "id": d.id,
                "plugin": d.plugin,
                "status": state.status,
                "error": asdict(state.error) if state.error else None,
                "cursor": state.cursor,
                "behind": sealed - state.cursor,
                "lag": {
                    "micro_batches": backlog.micro_batches,
                    "records": max(0, backlog.records - state.confirmed_records),
                    "bytes": backlog.bytes,
                    "age": round(backlog.age(now), 3),
                },
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
        "at": now,
        "status": status.status,
        "isolate": pipeline.isolate,
        "error": asdict(status.error) if status.error else None,
        "lost": str(lost(context) or "") or None,
        "deadline": status.deadline,
        "overdue": status.overdue,
        "recovering": [asdict(each) for each in failing],
        "sealed": sealed,
        "unsealed": _unsealed(unsealed) if unsealed else None,
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


def _unsealed(open_one: MicroBatch) -> dict[str, Any]:
    """Describes the open micro-batch: the nodes that have a share in it, those that have not staged yet, and per source
    the records planned (None: only reading says) and staged."""
    sources = {}
    for id, slices in open_one.slices.items():
        planned = [s.records for s in slices]
        known = sum(n for n in planned if n is not None)
        staged = open_one.stages.get(Node.source(id))
        sources[id] = {"planned": None if None in planned else known, "staged": staged.read if staged else 0}
    return {
        "number": open_one.number,
        "missing": open_one.missing,
        "nodes": list(open_one.nodes),
        "opened_at": open_one.opened_at,
        "sources": sources,
    }
