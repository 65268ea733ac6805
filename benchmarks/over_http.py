"""`http`: two files and HTTP, one request per event with an outcome each, to a receiver on this machine.

The receiver is `benchmarks.receiver` (raw asyncio, a process of its own), not the demo's, which keeps a log of what it
took and would be the bottleneck. CPU is told with and without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.data import count_of
from benchmarks.place import Place, serving
from benchmarks.receiver import receiving, summary
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, expect, only_buys, source, stages, to_file
from conduit_tasks.micro_batch.context import open_broker

UNCONFIRMED = 64


def to_http(url: str, **delivery: Any) -> dict[str, Any]:
    """Many unconfirmed at a time, in any order; every outcome is the record's own."""
    return {
        "id": "http",
        "type": "destination",
        "plugin": "http",
        "settings": {"url": url},
        "delivery": {"pipe": "resend-multi", "max-unconfirmed": UNCONFIRMED, "order-by": "none", **delivery},
    }


def run(place: Place, count: int) -> Result:
    """`count` events, one request each."""
    place.archive()
    events = place.events(count)
    lines = {"all": count, "filtered": count_of(events, b'"kind":"buy"')}
    with receiving() as (url, receiver):
        files = to_file("all", place), to_file("filtered", place, only_buys())
        place.pipeline(source(events), *files, to_http(url))
        with serving(place) as (_, _, redis_pid):
            ours = drive(place, redis_pid, "--beside", str(receiver))
            expect(place, **lines)
            broker = open_broker("bench")
            delivered = broker.deliveries.get("http").counters["delivered"]
            broker.close()
        seen = summary(url)
    if not delivered == seen["distinct"] == count:
        raise SystemExit(f"{count} events: {delivered} delivered, the receiver saw {seen}")
    alone, ratios = _by_tasks(place, count)
    seconds, million = ours["seconds"], count / 1e6
    http = ours["stages"]["destinations.http"]
    return Result(
        f"http: two files and HTTP, one request per event, {count:,} events, {UNCONFIRMED} unconfirmed",
        ("what", "seconds", "events/s", "CPU s per M", "with receiver"),
        [
            [
                "all three",
                seconds,
                round(count / seconds),
                ours["cpu"] / million,
                (ours["cpu"] + ours["cpu_beside"]) / million,
            ],
            ["HTTP of them", http, round(count / http), "", ""],
            *alone,
        ],
        [
            Figure("events/s", count / seconds, "≥", 20_000),
            Figure("CPU s per M, without the receiver", ours["cpu"] / million, "≤", 60),
            *ratios,
        ],
        [stages(ours), f"Requests {seen['requests']:,}, of them repeated {seen['requests'] - seen['distinct']:,}."],
        {"events": count, "delivered": float(delivered), "distinct": float(seen["distinct"])},
    )


def _by_tasks(place: Place, count: int) -> tuple[list[list[object]], list[Figure]]:
    """Rows of `count` events to HTTP alone by one and by two tasks, to a receiver on the same two cores that answers as
    soon as it can; and what two are against one."""
    place = replace(place, master="local[2]")
    rows: list[list[object]] = []
    took, spent = [], []
    for tasks in place.numbers_of_tasks:
        with receiving() as (url, receiver):
            place.pipeline(source(place.events(count)), to_http(url, parallelism=tasks))
            with serving(place) as (_, _, redis_pid):
                ours = drive(place, redis_pid, "--beside", str(receiver), spark=tasks > 1)
            seen = summary(url)
        if seen["distinct"] != count:
            raise SystemExit(f"{count} events by {tasks} tasks: the receiver saw {seen}")
        seconds, cpu = ours["stages"]["destinations.http"], ours["cpu"] / count * 1e6
        took.append(seconds)
        spent.append(cpu)
        rows.append(
            [
                f"HTTP alone, {tasks} of Spark's tasks",
                seconds,
                round(count / seconds),
                cpu,
                cpu + ours["cpu_beside"] / count * 1e6,
            ]
        )
    if len(took) < 2:
        return rows, []
    return rows, [
        Figure("HTTP alone: 2 tasks / 1", took[0] / took[1], "≥", 1.2, " ×"),
        Figure("HTTP alone: CPU of 2 tasks / 1", spent[1] / spent[0], "≤", 1.1, " ×"),
    ]
