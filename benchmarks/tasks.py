"""`tasks`: one HTTP destination by one and by eight Spark tasks; Parquet, Delta and S3 by one and two (`over_bulk`);
and what the broker keeps of 64.

The receiver answers each request after 50 ms; a task has 64 unconfirmed. So one task sends 1,280 a second at most,
whatever its CPU is. The state is that of 64 shards as scattered as the engine lets them be: as many gaps in each as it
may have records on their way and read ahead.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from benchmarks import over_bulk
from benchmarks.over_http import UNCONFIRMED, to_http
from benchmarks.place import PIPELINE, Place, serving
from benchmarks.receiver import receiving, summary
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, source
from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.broker.state import Stage
from conduit_tasks.connectors.base import Slice
from conduit_tasks.delivery.ahead import LEAST
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.record.counts import Counts

DELAY = 0.05
TASKS = 8
FEW = 16
"""Unconfirmed per task where the cores are to be idle mostly: 320 a second."""
SHARDS = 64


def run(place: Place, count: int, records: int, bulk: int) -> Result:
    """`count` events, one request each; state and confirms of a micro-batch of `records`; `bulk` events in bulk."""
    written, ratios, facts = over_bulk.run(place, bulk)
    several = 2 if place.small else TASKS
    place = replace(place, master=f"local[{several}]")
    rows: list[list[object]] = []
    rates = {}
    loads = {UNCONFIRMED: count} if place.small else {FEW: count // 4, UNCONFIRMED: count}
    for unconfirmed, events in loads.items():
        for tasks in (1, several):
            seconds, cpu = _delivered(place, events, tasks, unconfirmed)
            rates[unconfirmed, tasks] = events / seconds
            rows.append(["http", unconfirmed, tasks, seconds, round(events / seconds), cpu / events * 1e6])
    size, took = _state(place, records)
    told = " and ".join(f"{spent:.1f}" for name, spent in facts.items() if name.startswith("moto."))
    return Result(
        f"tasks: HTTP that answers after {DELAY * 1_000:g} ms, {count:,} events; in bulk {bulk:,}",
        ("to", "unconfirmed per task", "tasks", "seconds", "events/s", "CPU s per M"),
        [*rows, *written],
        [
            *(
                Figure(f"{several} tasks / 1, {each} each", rates[each, several] / rates[each, 1], "≥", 7, " ×")
                for each in loads
            ),
            *ratios,
            Figure(f"state of {SHARDS} shards, KB", size / 1_000, "≤", 64),
            Figure("confirm of a range, ms", took * 1_000, "≤", 1),
        ],
        [
            f"State and confirms: a micro-batch of {records:,} records by key, every shard as scattered as it may be.",
            f"S3 is moto on the same cores: {told} s of CPU of its own.",
        ],
        {"events": count, "state": float(size), "confirm": took, **facts},
    )


def _delivered(place: Place, count: int, tasks: int, unconfirmed: int) -> tuple[float, float]:
    """Seconds of the HTTP stage, and CPU of all."""
    events = place.events(count)
    with receiving(DELAY) as (url, _):
        place.pipeline(source(events), to_http(url, parallelism=tasks, **{"max-unconfirmed": unconfirmed}))
        with serving(place) as (_, _, redis_pid):
            ours = drive(place, redis_pid, spark=tasks > 1)
            broker = open_broker(PIPELINE)
            delivered = broker.deliveries.get("http").counters["delivered"]
            broker.close()
        seen = summary(url)
    if not delivered == seen["distinct"] == seen["requests"] == count:
        raise SystemExit(f"{count} events: {delivered} delivered, the receiver saw {seen}")
    return ours["stages"]["destinations.http"], ours["cpu"]


def _state(place: Place, records: int) -> tuple[int, float]:
    """Bytes of the destination's key (MEMORY USAGE), and seconds of a confirm of one range (the least)."""
    place.pipeline()
    with serving(place) as (_, client, _):
        broker = Broker("state", client)
        broker.lifecycle.initialise()
        broker.lifecycle.register(["in"], ["to"])
        m = broker.micro_batches.open({"in": [Slice("f", "", 0, records, records)]}, "c", 1)
        with broker.leases.acquire("sources.in", "bench") as lease:
            broker.micro_batches.stage("sources.in", m, lease.token, Stage("s", [records], records))
        with broker.leases.acquire("seal", "bench") as lease:
            sealed: dict[str, Any] = {"total": records, "bytes": records, "matched": {"to": records}}
            broker.micro_batches.seal(m, lease.token, manifest="m", **sealed)
        lease = broker.leases.acquire("destinations.to", "bench")
        broker.shards.divide("to", m, lease.token, by="key", count=SHARDS, matched=records)
        each, gaps, took = records // SHARDS, UNCONFIRMED + LEAST, []
        for shard in range(SHARDS):
            # Every second of the last records it has read, behind all those that are confirmed.
            first = each - 2 * gaps - 2
            apart = RangeSet.of([(0, first), *((n, n) for n in range(first + 2, first + 2 * gaps, 2))])
            broker.shards.confirm("to", m, lease.token, shard, apart, Counts(), total=records)
        for shard in range(SHARDS):
            began = time.perf_counter()
            broker.shards.confirm(
                "to", m, lease.token, shard, RangeSet.of([(each - 1, each - 1)]), Counts(1, 1), total=records
            )
            took.append(time.perf_counter() - began)
        return client.memory_usage(broker.keys.destination("to"), samples=0) or 0, min(took)
