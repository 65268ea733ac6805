"""`gateway`: events over HTTP, each answered when Redis has fsynced it.

The gateway, its Redis (`appendfsync always`) and the load generator are processes of their own. Events per second of
the gateway's own CPU time is what one core can take, whatever else the machine does; beside it, what came through.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis

from benchmarks.measure import measured
from benchmarks.place import PIPELINE, ROOT, Place, serving
from benchmarks.tables import Figure, Result
from conduit_tasks.broker.keys import Keys

CONNECTIONS = 64
BATCH = 100
SOURCE = "web"
TICK = 1 / os.sysconf("SC_CLK_TCK")
"""Seconds of CPU are counted in these: a few events may cost less than one."""
PATH = f"/ingest/{PIPELINE}/{SOURCE}"


@contextmanager
def gateway(url: str, place: Place) -> Iterator[tuple[str, int]]:
    """A gateway for the block: (url, process id)."""
    argv = [sys.executable, "-c", "from conduit_tasks.cli.main import main; main()", "gateway", "--port", "0"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "BENCH_TOKEN": "bench", "CONDUIT_REDIS_URL": url}
    with place.log.open("ab") as log:
        process = subprocess.Popen(argv, env=env, cwd=place.home, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the gateway did not start; {place.log} says why")
        yield line.split()[2], process.pid
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def serving_events(place: Place) -> Iterator[tuple[str, redis.Redis, int, int]]:
    """A new home with a gateway and its Redis for the block: (url, client, process id of the gateway, of Redis)."""
    settings = {"auth": "env:BENCH_TOKEN", "backlog.records": "10000000", "backlog.bytes": "8GiB"}
    place.pipeline(
        {"id": SOURCE, "type": "source", "plugin": "gateway", "settings": settings},
        {"id": "out", "type": "destination", "plugin": "log"},
    )
    with serving(place) as (url, client, redis_pid):
        client.config_set("appendfsync", "always")
        with gateway(url, place) as (at, pid):
            yield at, client, pid, redis_pid


def once(at: tuple[str, redis.Redis, int, int], mode: str, requests: int, batch: int) -> dict[str, float]:
    """Sends so many requests; events per second and per second of CPU of the gateway and of Redis."""
    url, client, pid, redis_pid = at
    events, before, where = requests * batch, stored(client), urlsplit(url)
    words = [str(where.hostname), str(where.port), PATH, mode, str(requests), str(CONNECTIONS), str(batch)]
    with measured(pid) as cost, measured(redis_pid) as broker:
        command = [sys.executable, "-m", "benchmarks.load", *words]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    told = json.loads(done.stdout)
    there = stored(client) - before
    if told["answers"] != {"202": requests} or there != events:
        raise SystemExit(f"{mode}: {events} events were sent, {told['answers']} answered, {there} are stored")
    return {
        "events": events,
        "rate": events / told["seconds"],
        "per_cpu": events / max(cost.cpu, TICK),
        "redis": broker.cpu,
    }


def stored(client: redis.Redis) -> int:
    """Events that are there."""
    state: Any = client.hgetall(Keys(PIPELINE).ingested(SOURCE))
    return int(state.get("last", 0)) - int(state.get("acked", 0))


def run(place: Place, singles: int, batches: int) -> Result:
    """`singles` requests of one event in each mode, and `batches` of 100; each mode has a gateway of its own, unless
    the place is small."""
    batched_mode = f"batches of {BATCH}"
    modes = {"binary": ("binary", singles, 1), "structured": ("structured", singles, 1)}
    modes[batched_mode] = ("batch", batches, BATCH)
    done: dict[str, dict[str, float]] = {}
    for names in [[*modes]] if place.small else [[name] for name in modes]:
        with serving_events(place) as at:
            done |= {name: once(at, *modes[name]) for name in names}
    rows = [
        [mode, of["events"], of["rate"], of["per_cpu"], of["redis"] * 1e6 / of["events"]] for mode, of in done.items()
    ]
    alone = [done["binary"], done["structured"]]
    batched = done[batched_mode]
    return Result(
        f"gateway: {CONNECTIONS} connections, Redis with appendfsync always",
        ["mode", "events", "events/s", "events per CPU s of the gateway", "CPU s of Redis per M"],
        rows,
        [
            Figure("single events per second of one core", min(of["per_cpu"] for of in alone), "≥", 5_000),
            Figure("batched events per second of one core", batched["per_cpu"], "≥", 50_000),
            Figure(
                "single events per second, load and Redis beside it",
                min(r["rate"] for r in list(done.values())[:2]),
            ),
            Figure("batched events per second, load and Redis beside it", batched["rate"]),
        ],
        facts={"stored": sum(of["events"] for of in done.values())},
    )
