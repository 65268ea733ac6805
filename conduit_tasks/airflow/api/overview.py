"""Answers of the API made of the broker's state: rows of many pipelines and who needs somebody most, one pipeline's
status with leases and graph, micro-batches, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any

from conduit_tasks.airflow.api.holders import task_of
from conduit_tasks.broker.looks import look
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.forgotten import lost
from conduit_tasks.operate.status import describe, described
from conduit_tasks.pipeline.names import dag_id, task_id
from conduit_tasks.settings import settings
from conduit_tasks.topology import Destination, Node, Pipeline

if TYPE_CHECKING:
    from conduit_tasks.broker.access import Access
    from conduit_tasks.broker.glances import Glance
    from conduit_tasks.broker.state import MicroBatch


LEAST = 0.001
"""Seconds that a deadline is taken for at least, where destinations are compared by their share of it."""
PARTS = 20
"""Parts of a source whose positions are streamed at most."""


@contextmanager
def brokers() -> Iterator[Any]:
    """Yields a function from a pipeline's id to its broker; all brokers use one connection."""
    from conduit_tasks.broker.broker import Broker
    from conduit_tasks.redis_client.connection import connect

    redis = connect(settings())
    try:
        yield lambda id: Broker(id, redis)
    finally:
        redis.close()


def exposed(pipelines: Sequence[Pipeline]) -> bytes:
    """Returns the pipelines' metrics in Prometheus' text format."""
    from conduit_tasks.operate import metrics

    with brokers() as broker_of:
        return metrics.exposed(pipelines, broker_of)


def rows(pipelines: Sequence[Pipeline]) -> list[dict[str, Any]]:
    """Returns one row per pipeline: status, first error, since when, sealed micro-batches, the lag of the slowest
    destination, and the records sealed in each five minutes of the last two hours."""
    from conduit_tasks.broker.glances import glances

    with brokers() as broker_of:
        redis = broker_of("").redis
        return [_row(pipeline, seen) for pipeline, seen in zip(pipelines, glances(redis, pipelines))]


def _row(pipeline: Pipeline, seen: Glance) -> dict[str, Any]:
    ages = {d.id: max(0.0, seen.at - d.waits_since) for d in seen.destinations if d.waits_since is not None}
    deadlines = {d.id: _deadline(pipeline, d) for d in pipeline.destinations}
    late = [id for id, age in ages.items() if age > deadlines[id]]
    slowest = max(ages, key=lambda id: (ages[id] / max(deadlines[id], LEAST), ages[id]), default=None)
    records = [d.records for d in seen.destinations]
    stopped = [d.id for d in seen.destinations if d.status == "stopped"]
    down = [d.id for d in seen.destinations if d.down]
    dead = seen.dead + sum(d.dead for d in seen.destinations)
    confirmed = [d.confirmed_at for d in seen.destinations if d.confirmed_at is not None]
    since = seen.error.at if seen.error else seen.at - max(ages.values()) if ages else max(confirmed, default=None)
    return {
        "id": pipeline.id,
        "dag_id": dag_id(pipeline.id),
        "description": pipeline.description,
        "schedule": pipeline.schedule,
        "status": seen.status,
        "error": asdict(seen.error) if seen.error else None,
        "sources": [s.id for s in pipeline.sources],
        "destinations": [d.id for d in pipeline.destinations],
        "sealed": seen.sealed,
        "behind": max((d.behind for d in seen.destinations), default=0),
        "waiting": None if None in records else max((n for n in records if n is not None), default=0),
        "age": round(max(ages.values(), default=0.0), 3),
        "deadline": _finite(min(deadlines.values(), default=inf)),
        "slowest": slowest and {"id": slowest, "age": round(ages[slowest], 3), "deadline": _finite(deadlines[slowest])},
        "late": late,
        "stopped": stopped,
        "down": down,
        "dead": dead,
        "since": since,
        "attention": _attention(seen, late=bool(late), stopped=bool(stopped), down=bool(down), dead=bool(dead)),
        "recent": seen.recent,
    }


def _deadline(pipeline: Pipeline, destination: Destination) -> float:
    """Returns the age in seconds at which a destination is late: by its `deadline`, or the `lag` of an alert."""
    rules = [alert["lag"] for alert in pipeline.alerts if alert.get("lag") is not None]
    return min([*rules, *([] if destination.deadline is None else [destination.deadline])], default=inf)


def _finite(seconds: float) -> float | None:
    return None if seconds == inf else seconds


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what all these rows have together."""
    return {
        "at": time.time(),
        "pipelines": len(rows),
        "attention": sum(1 for row in rows if row["attention"]),
        "recent": [sum(each) for each in zip(*(row["recent"] for row in rows))],
    }


def _attention(seen: Glance, *, late: bool, stopped: bool, down: bool, dead: bool) -> int:
    """Returns how much a pipeline needs somebody, the higher the more; 0: nobody."""
    if seen.status == "degraded":
        return 5
    if late or stopped:
        return 4
    if seen.status == "recovering" or down:
        return 3
    return 2 if dead else 1 if seen.status != "running" else 0


def details(pipeline: Pipeline) -> dict[str, Any]:
    """Returns everything that the broker knows of one pipeline."""
    with opened(pipeline, "status") as context:
        return named(pipeline, describe(context))


def glimpse(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the same, as it is streamed: without what changes all the time, and what has no bound."""
    with opened(pipeline, "status") as context:
        return {**seen(pipeline, context.broker.access), "lost": str(lost(context) or "") or None}


def seen(pipeline: Pipeline, access: Access) -> dict[str, Any]:
    """Returns a look as it is streamed; `lost` is not looked up."""
    found = named(pipeline, described(pipeline, look(access, pipeline, PARTS)))
    for about in found["destinations"]:
        del about["lease_for"]
    return found


def named(pipeline: Pipeline, found: dict[str, Any]) -> dict[str, Any]:
    """Returns the status with Airflow's names: of the pipeline's DAG, of each node's task, and of the task that holds
    its lease."""
    held = found["holders"]
    for about in found["destinations"]:
        node = Node.destination(about["id"])
        about["lease_for"] = round(held[node]["left"], 3) if node in held else 0.0
        about["task_id"] = task_id(node)
        if outage := about["outage"]:
            told = {name: value for name, value in outage.items() if name != "owner"}
            about["outage"] = {**told, **task_of(pipeline.id, node, outage["owner"])}
    for about in found["sources"]:
        about["task_id"] = task_id(Node.source(about["id"]))
    return {
        **found,
        "holders": {node: task_of(pipeline.id, node, holder["owner"]) for node, holder in held.items()},
        "dag_id": dag_id(pipeline.id),
        "description": pipeline.description,
        "schedule": pipeline.schedule,
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


def micro_batches(
    pipeline: Pipeline, offset: int, limit: int, until: float | None = None
) -> tuple[int, list[dict[str, Any]]]:
    """Returns the number of micro-batches ever opened (`until`: up to this time), and one page of them, newest first;
    collected ones have the state "collected"."""
    with opened(pipeline, "status") as context:
        broker = context.broker
        unsealed = broker.micro_batches.unsealed()
        newest = max(broker.micro_batches.latest_sealed(), unsealed.number if unsealed else 0)
        if until is not None:
            newest = _opened_by(broker, newest, until)
        states = {d.id: broker.deliveries.get(d.id) for d in pipeline.destinations}
        out: list[dict[str, Any]] = []
        for number in range(newest - offset, max(0, newest - offset - limit), -1):
            found = broker.micro_batches.find(number)
            deliveries = {}
            for id, state in states.items():
                done = number <= state.cursor
                confirmed = 0 if done else state.confirmed_of(number)
                deliveries[id] = {
                    "delivered": done,
                    "confirmed": (found.total if found else None) if done else confirmed,
                    "matched": found.matched.get(id) if found else None,
                }
            out.append({**_micro_batch(number, found), "destinations": deliveries})
        return newest, out


def _opened_by(broker: Any, newest: int, until: float) -> int:
    """Returns the number of the last micro-batch opened by this time; of collected ones nobody knows when that was."""
    low, high = broker.access.numbers("collected")[0], newest
    while low < high:
        middle = (low + high + 1) // 2
        at = broker.access.field(broker.keys.micro_batch(middle), "opened_at")
        if at is None or int(at) / 1e6 <= until:
            low = middle
        else:
            high = middle - 1
    return low


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


def _processors(processors: Sequence[Any]) -> list[dict[str, str]]:
    return [{"id": p.id, "plugin": p.plugin} for p in processors]
