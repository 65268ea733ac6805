"""Status of a pipeline as one plain document, for the CLI, the API and the demo's account: lag, counts and positions,
who is at work, and which micro-batch is open."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from conduit_tasks.broker.looks import look
from conduit_tasks.broker.state import Backlog
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.forgotten import lost
from conduit_tasks.micro_batch.room import room_left
from conduit_tasks.operate.bottleneck import bottleneck
from conduit_tasks.operate.front import front
from conduit_tasks.redis_client.portions import PORTION

if TYPE_CHECKING:
    from conduit_tasks.broker.looks import Look, Open
    from conduit_tasks.topology import Destination, Pipeline, Source


def snapshot(pipeline_id: str) -> dict[str, Any]:
    """Returns a pipeline's state as JSON types; asks the broker a few questions, whatever the number of events."""
    with opened(pipeline_id, "status") as context:
        return describe(context)


def describe(context: Context) -> dict[str, Any]:
    """Describes the state, see `snapshot`. `behind` counts micro-batches, `dead` entries of the dead-letter index;
    `lag` are the sealed records that a destination has not confirmed, `lag.bytes` those of whole micro-batches, and
    `lag.age` the seconds since the oldest of them was sealed; `lost` says what to do if Redis knows nothing of the
    pipeline, though its spool does; `at` is the time by the server's clock."""
    found = described(context.pipeline, look(context.broker.access, context.pipeline, PORTION))
    positions = context.broker.positions
    for s in found["sources"]:
        if s["planned"] is None:
            s["planned"], s["acked"] = positions.planned(s["id"]), positions.acked(s["id"])
    return {**found, "lost": str(lost(context) or "") or None}


def described(pipeline: Pipeline, seen: Look) -> dict[str, Any]:
    """Describes a look at a pipeline. `done`: records that a source has read, or a destination confirmed, ever; `work`:
    whether a task works on the node (`at work`, `waits`: it has ended with work left, `none`); `holders`: node → who
    holds its lease; `held`: whether the lag budget is used up; `front`: the micro-batch in front (`operate.front`);
    `bottleneck`: who waits for whom (`operate.bottleneck`)."""
    cursors = [of.state.cursor for of in seen.destinations.values()]
    lowest = min(seen.destinations.values(), key=lambda of: of.state.cursor).backlog if cursors else Backlog()
    found = {
        "pipeline": pipeline.id,
        "at": seen.at,
        "status": seen.status.status,
        "isolate": pipeline.isolate,
        "error": asdict(seen.status.error) if seen.status.error else None,
        "lost": None,
        "deadline": seen.status.deadline,
        "overdue": seen.status.overdue,
        "recovering": [asdict(each) for each in seen.failing],
        "sealed": seen.sealed,
        "unsealed": _unsealed(seen.open) if seen.open else None,
        "front": front(pipeline, seen),
        "backlog": asdict(lowest),
        "held": room_left(pipeline, lowest, seen.at, pipeline.micro_batch) is None,
        "totals": seen.totals,
        "dead_before_fan_out": seen.dead,
        "holders": {str(node): asdict(holder) for node, holder in seen.holders.items()},
        "sources": [_source(s, seen) for s in pipeline.sources],
        "processors": _processors(seen) if pipeline.processors else None,
        "destinations": [_destination(d, seen) for d in pipeline.destinations],
    }
    first = bottleneck(found)
    return {**found, "bottleneck": asdict(first) if first else None}


def _source(s: Source, seen: Look) -> dict[str, Any]:
    of, totals = seen.sources[s.id], seen.totals
    read = totals.get(f"{s.node}/read", 0)
    return {
        "id": s.id,
        "plugin": s.plugin,
        "read": read,
        "done": read + (seen.open.read.get(s.id, (None, 0))[1] if seen.open else 0),
        "filtered": totals.get(f"{s.node}/filtered", 0),
        "nacked": totals.get(f"{s.node}/nacked", 0),
        "skipped": totals.get(f"{s.node}/skipped", 0),
        "work": _work(seen, s.node),
        "parts": of.parts,
        "planned": of.planned,
        "acked": of.acked,
    }


def _processors(seen: Look) -> dict[str, Any]:
    counts = {name: seen.totals.get(f"processors/{name}", 0) for name in ("read", "filtered", "nacked")}
    done = counts["read"] + (seen.open.processed if seen.open else 0)
    return {**counts, "done": done, "work": _work(seen, "processors")}


def _destination(d: Destination, seen: Look) -> dict[str, Any]:
    of = seen.destinations[d.id]
    state, backlog = of.state, of.backlog
    return {
        "id": d.id,
        "plugin": d.plugin,
        "status": state.status,
        "error": asdict(state.error) if state.error else None,
        "cursor": state.cursor,
        "behind": seen.sealed - state.cursor,
        "lag": {
            "micro_batches": backlog.micro_batches,
            "records": of.behind,
            "bytes": backlog.bytes,
            "age": round(backlog.age(seen.at), 3),
        },
        **state.counters,
        "done": seen.totals.get("read", 0) - of.behind,
        "work": _work(seen, d.node),
        "dead": of.dead,
        "parked_keys": of.parked,
        "attempts": seen.attempts.get(d.node, 0),
        "breaker": asdict(of.breaker) if of.breaker else None,
        "outage": asdict(of.outage) if of.outage else None,
        "confirmed_at": state.confirmed_at,
    }


def _work(seen: Look, node: str) -> str:
    runs = [run for run in (seen.run, seen.run.before if seen.run else None) if run is not None]
    if node in seen.holders or any(run.at_work(node) for run in runs):
        return "at work"
    return "waits" if seen.run is not None and seen.run.waits(node) else "none"


def _unsealed(of: Open) -> dict[str, Any]:
    """Describes the open micro-batch: the nodes that have a share in it, those that have not staged yet, and per source
    the records planned (None: only reading says) and staged."""
    return {
        "number": of.number,
        "missing": list(of.missing),
        "nodes": list(of.nodes),
        "opened_at": of.opened_at,
        "sources": {id: {"planned": planned, "staged": read} for id, (planned, read) in of.read.items()},
    }
