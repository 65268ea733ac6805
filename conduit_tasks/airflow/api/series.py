"""`/v1/pipelines/{id}/series`: what a pipeline and its nodes did over time, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from conduit_tasks.airflow.api.access import Seen
from conduit_tasks.broker.series import COARSE, FINE
from conduit_tasks.metrics import curves
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.topology import Node, Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/series", tags=["pipelines"])

READ = ("read", "filtered", "nacked")
TOTAL = (*READ, "bytes", "micro_batches")
DELIVERED = ("delivered", "filtered", "completed", "nacked", "parked", "retried", "redelivered", "bytes")
SHARES = {"p50": 0.5, "p99": 0.99}


@router.get("")
def show_series(
    pipeline: Seen,
    seconds: Annotated[
        int, Query(ge=60, le=COARSE.span, description="How far back; up to two hours in steps of 10 s, else of 5 min.")
    ] = FINE.span,
) -> dict[str, Any]:
    """Returns curves: `times` are the starts of steps of `step` seconds; records read, delivered, filtered, nacked,
    retried … in each; records and bytes that wait (`lag`, `lag_bytes`) and the age of the oldest in seconds (`age`) at
    its end; 50 and 99 of 100 records took up to `p50`, `p99` seconds from their event to their confirmation."""
    with opened(pipeline, "series") as context:
        return drawn(context, pipeline, seconds)


def drawn(context: Context, pipeline: Pipeline, seconds: float) -> dict[str, Any]:
    """Returns the curves of the last seconds."""
    broker, width = context.broker, FINE if seconds <= FINE.span else COARSE
    ids, now = [d.id for d in pipeline.destinations], context.broker.access.now()
    nodes = ["", *(str(s.node) for s in pipeline.sources)]
    found = broker.series.read(width, nodes, ids)
    step, times = curves.steps(now - seconds, now, width.seconds)
    sums = {node: curves.sums(of, times, step) for node, of in found.items()}
    destinations = {}
    for id in ids:
        own, backlog = sums[Node.destination(id)], broker.deliveries.backlog([id])
        waiting = max(0, backlog.records - broker.deliveries.get(id).confirmed.count)
        destinations[id] = {**_named(own, DELIVERED), **_waiting(sums[""], own, waiting, backlog.bytes, step)}
    return {
        "pipeline": pipeline.id,
        "at": now,
        "step": step,
        "times": times,
        "total": _named(sums[""], TOTAL),
        "sources": {s.id: _named(sums[s.node], READ) for s in pipeline.sources},
        "destinations": destinations,
    }


def _named(sums: Sequence[Mapping[str, int]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [figures.get(name, 0) for figures in sums] for name in names}


def _waiting(
    total: Sequence[Mapping[str, int]], own: Sequence[Mapping[str, int]], records: int, size: int, step: int
) -> dict[str, list[Any]]:
    came = [figures.get("read", 0) for figures in total]
    lag = curves.lags(records, came, [figures.get("confirmed", 0) for figures in own])
    sizes = [figures.get("bytes", 0) for figures in total], [figures.get("bytes", 0) for figures in own]
    return {
        "lag": lag,
        "lag_bytes": curves.lags(size, *sizes),
        "age": curves.ages(came, lag, step),
        **{name: [curves.quantile(figures, share) for figures in own] for name, share in SHARES.items()},
    }
