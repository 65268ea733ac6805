"""Answers of the API about a pipeline: the CLI's `snapshot`, with lag in seconds, leases and the graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.operate.status import describe
from conduit_tasks.pipeline.names import dag_id, task_id
from conduit_tasks.settings import settings
from conduit_tasks.topology import Node, Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.state import MicroBatch


@contextmanager
def brokers() -> Iterator[Any]:
    """Yields a function from a pipeline's id to its broker; all brokers use one connection."""
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.broker.connection import connect

    redis = connect(settings())
    try:
        yield lambda id: Broker(id, redis)
    finally:
        redis.close()


def exposed(pipelines: Sequence[Pipeline]) -> bytes:
    """Returns the pipelines' metrics in Prometheus' text format."""
    from conduit_tasks.metrics.definitions import STATE
    from conduit_tasks.metrics.prometheus import exposition
    from conduit_tasks.metrics.state import samples

    with brokers() as broker_of:
        return exposition(STATE, lambda: samples(pipelines, broker_of))


def rows(pipelines: Sequence[Pipeline]) -> list[dict[str, Any]]:
    """Returns one row per pipeline: status, first error, sealed micro-batches and the backlog of the slowest
    destination."""
    out = []
    with brokers() as broker_of:
        for pipeline in pipelines:
            broker = broker_of(pipeline.id)
            status = broker.lifecycle.status()
            sealed, *cursors = broker.deliveries.cursors([d.id for d in pipeline.destinations])
            out.append(
                {
                    "id": pipeline.id,
                    "dag_id": dag_id(pipeline.id),
                    "description": pipeline.description,
                    "schedule": pipeline.schedule,
                    "status": status.status,
                    "error": asdict(status.error) if status.error else None,
                    "sources": [s.id for s in pipeline.sources],
                    "destinations": [d.id for d in pipeline.destinations],
                    "sealed": sealed,
                    "behind": sealed - min(cursors, default=sealed),
                    "dead": sum(broker.dead_letters.count(id) for id in ["", *(d.id for d in pipeline.destinations)]),
                }
            )
    return out


def details(pipeline: Pipeline) -> dict[str, Any]:
    """Returns everything that the broker knows of one pipeline."""
    with opened(pipeline, "status") as context:
        found = describe(context)
        broker, now = context.broker, context.broker.access.now()
        for about in found["destinations"]:
            node = Node.destination(about["id"])
            about["lag"] = _lag(context, about["id"], now)
            about["lease_for"] = round(broker.leases.held_for(node), 3)
            about["task_id"] = task_id(node)
        for about in found["sources"]:
            about["task_id"] = task_id(Node.source(about["id"]))
        return {
            **found,
            "dag_id": dag_id(pipeline.id),
            "description": pipeline.description,
            "schedule": pipeline.schedule,
            "at": now,
        }


def topology(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the graph, as the page draws it. No settings: they may hold secrets."""
    return {
        "pipeline": pipeline.id,
        "dag_id": dag_id(pipeline.id),
        "sources": [
            {"id": s.id, "plugin": s.plugin, "processors": _processors(s.processors)} for s in pipeline.sources
        ],
        "processors": _processors(pipeline.processors),
        "destinations": [
            {
                "id": d.id,
                "plugin": d.plugin,
                "processors": _processors(d.processors),
                "filters": len(d.filters),
                "pipe": d.delivery.pipe,
                "retry": d.delivery.retry,
            }
            for d in pipeline.destinations
        ],
    }


def micro_batches(pipeline: Pipeline, offset: int, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """Returns the number of micro-batches ever opened, and one page of them, newest first; collected ones have the
    state "collected"."""
    with opened(pipeline, "status") as context:
        broker = context.broker
        unsealed = broker.micro_batches.unsealed()
        newest = max(broker.micro_batches.latest_sealed(), unsealed.number if unsealed else 0)
        states = {d.id: broker.deliveries.get(d.id) for d in pipeline.destinations}
        out: list[dict[str, Any]] = []
        for number in range(newest - offset, max(0, newest - offset - limit), -1):
            found = broker.micro_batches.find(number)
            deliveries = {}
            for id, state in states.items():
                confirmed = state.confirmed.count if number == state.cursor + 1 else 0
                done = number <= state.cursor
                deliveries[id] = {
                    "delivered": done,
                    "confirmed": (found.total if found else None) if done else confirmed,
                    "matched": found.matched.get(id) if found else None,
                }
            out.append({**_micro_batch(number, found), "destinations": deliveries})
        return newest, out


def _micro_batch(number: int, found: MicroBatch | None) -> dict[str, Any]:
    if found is None:
        return {"number": number, "state": "collected"}
    return {
        "number": number,
        "state": found.state,
        "opened_at": found.opened_at,
        "sealed_at": found.sealed_at,
        "records": found.total,
        "bytes": found.bytes,
        "missing": found.missing if found.state == "open" else [],
        "config": found.config,
    }


def _lag(context: Context, id: str, now: float) -> dict[str, Any]:
    """Returns the sealed records that one destination has not confirmed; those it has confirmed of a micro-batch under
    way are subtracted."""
    backlog = context.broker.deliveries.backlog([id])
    confirmed = context.broker.deliveries.get(id).confirmed.count
    return {
        "micro_batches": backlog.micro_batches,
        "records": max(0, backlog.records - confirmed),
        "bytes": backlog.bytes,
        "age": round(backlog.age(now), 3),
    }


def _processors(processors: Sequence[Any]) -> list[dict[str, str]]:
    return [{"id": p.id, "plugin": p.plugin} for p in processors]
