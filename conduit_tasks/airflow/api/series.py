"""`/v1/pipelines/{id}/series`: what a pipeline and its nodes did over time, as curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from conduit_tasks.airflow.api.access import Seen
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.looks import look
from conduit_tasks.broker.series import COARSE, FINE, Series
from conduit_tasks.metrics import curves
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.topology import Node, Pipeline

router = APIRouter(prefix="/v1/pipelines/{pipeline_id}/series", tags=["pipelines"])

READ = ("read", "filtered", "nacked")
TOTAL = (*READ, "bytes", "micro_batches")
DELIVERED = ("delivered", "filtered", "completed", "nacked", "parked", "retried", "redelivered", "bytes")
OUTCOMES = ("delivered", "filtered", "completed", "nacked", "parked")
SHARES = {"p50": 0.5, "p99": 0.99}


@router.get("")
def show_series(
    pipeline: Seen,
    seconds: Annotated[
        int, Query(ge=60, le=COARSE.span, description="How far back; up to two hours in steps of 10 s, else of 5 min.")
    ] = FINE.span,
    most: Annotated[int, Query(ge=0, le=1_000, description="Only the first so many destinations.")] = 1_000,
) -> dict[str, Any]:
    """Returns curves: `times` are the starts of steps of `step` seconds; records read, delivered, filtered, nacked,
    retried … in each; records and bytes that wait (`lag`, `lag_bytes`) and the age of the oldest in seconds (`age`) at
    its end; 50 and 99 of 100 records took up to `p50`, `p99` seconds from their event to their confirmation.
    `outcomes`: of all destinations together, also of those that `most` leaves out."""
    with opened(pipeline, "series") as context:
        return drawn(context.broker.access, pipeline, seconds, most)


def drawn(access: Access, pipeline: Pipeline, seconds: float, most: int) -> dict[str, Any]:
    """Returns the curves of the last seconds, of so many destinations at most, in a few round trips."""
    width, ids = FINE if seconds <= FINE.span else COARSE, [d.id for d in pipeline.destinations]
    seen, nodes = look(access, pipeline, 0), ["", *(str(s.node) for s in pipeline.sources)]
    found, now = Series(access).read(width, nodes, ids), seen.at
    step, times = curves.steps(now - seconds, now, width.seconds)
    sums = {node: curves.sums(of, times, step) for node, of in found.items()}
    destinations = {}
    for id in ids[:most]:
        own, of = sums[Node.destination(id)], seen.destinations[id]
        destinations[id] = {**_named(own, DELIVERED), **_waiting(sums[""], own, of.behind, of.backlog.bytes, step)}
    return {
        "pipeline": pipeline.id,
        "at": now,
        "step": step,
        "times": times,
        "total": _named(sums[""], TOTAL),
        "sources": {s.id: _named(sums[s.node], READ) for s in pipeline.sources},
        "outcomes": _together([sums[Node.destination(id)] for id in ids], OUTCOMES),
        "destinations": destinations,
    }


def _named(sums: Sequence[Mapping[str, int]], names: Sequence[str]) -> dict[str, list[Any]]:
    return {name: [figures.get(name, 0) for figures in sums] for name in names}


def _together(every: Sequence[Sequence[Mapping[str, int]]], names: Sequence[str]) -> dict[str, list[int]]:
    return {name: [sum(figures.get(name, 0) for figures in step) for step in zip(*every)] for name in names}


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
