"""`http`: two files and HTTP, one request per event with an outcome each, to a receiver on this machine.

The receiver is `benchmarks.receiver` (raw asyncio, a process of its own), not the demo's, which keeps a log of what it
took and would be the bottleneck. CPU is told with and without it.
"""

from __future__ import annotations

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
            ["HTTP alone", http, round(count / http), "", ""],
        ],
        [
            Figure("events/s", count / seconds, "≥", 20_000),
            Figure("CPU s per M, without the receiver", ours["cpu"] / million, "≤", 60),
        ],
        [stages(ours), f"Requests {seen['requests']:,}, of them repeated {seen['requests'] - seen['distinct']:,}."],
        {"events": count, "delivered": float(delivered), "distinct": float(seen["distinct"])},
    )
