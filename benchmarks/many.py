"""`many`: one pipeline of many destinations, and many pipelines on one Redis: what each more of them costs.

Everything runs in this process, without Spark: few events, because the cost of a destination and of a pipeline is asked
for, not that of an event. Commands are those that clients sent (MONITOR); CPU is that of the Redis process. "Page" is
what the page of a pipeline begins with, "tick" a look of its stream, and "curves" what its charts get now and then;
"list" and "metrics" are of all pipelines, with series of two busy weeks.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import redis

from benchmarks.broker_state import state, watched
from benchmarks.place import PIPELINE, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import source, to_file
from conduit_tasks.airflow.api import overview
from conduit_tasks.airflow.api.live import event
from conduit_tasks.airflow.api.series import drawn
from conduit_tasks.broker.access import Access
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.series import COARSE, FINE
from conduit_tasks.micro_batch import context
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.operate.status import snapshot
from conduit_tasks.pipeline.load import get_pipeline, load_folder
from conduit_tasks.redis_client.connection import connect
from conduit_tasks.settings import settings
from conduit_tasks.topology import Pipeline

WAIT = 20.0
SHOWN = 1.0
"""Seconds that a page may take."""
TICK = 0.3
"""Seconds that a look of a stream may take, which comes each second."""


def here(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
    """Runs the pieces of a job in this process."""
    return [function(piece) for piece in pieces]


def deliver(about: Context, destination: str, run: str) -> None:
    """Delivers what is sealed, in this process."""
    deliver_destination(about, destination, here, run=run, wait=WAIT, cleared=False, progress=lambda **_: None)


class Timed:
    """Seconds per step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        found = function()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
        return found


def one_run(timed: Timed, pipeline: Pipeline, run: str) -> None:
    """Does what the tasks of a run do, one after the other. Raises SystemExit if there was nothing to do."""
    pipeline_id = pipeline.id
    if not timed("plan", lambda: plan_run(pipeline_id, run)).work:
        raise SystemExit(f"{pipeline_id}: there is nothing to do")
    for origin in pipeline.sources:
        with opened(pipeline, run) as about:
            timed("read and seal", partial(read_source, about, origin.id, here, WAIT))
    for to in pipeline.destinations:
        with opened(pipeline, run) as about:
            timed("deliver", partial(deliver, about, to.id, run))
    for origin in pipeline.sources:
        timed("ack", partial(ack_source, pipeline_id, origin.id, run))


def wide(place: Place, events: Path, destinations: int) -> dict[str, Any]:
    """One pipeline with so many destinations: a micro-batch through all of them, then looks at it."""
    place.pipeline(source(events), *(to_file(f"to-{n}", place) for n in range(destinations)))
    timed = Timed()
    with serving(place) as (_, client, _):
        with watched(client) as sent:
            one_run(timed, get_pipeline(PIPELINE), "first")
        pipeline = get_pipeline(PIPELINE)
        timed("status", lambda: snapshot(PIPELINE))
        timed("page", lambda: event("look", {**overview.glimpse(pipeline), "graph": overview.topology(pipeline)}))
        with closing(connect(settings())) as own:
            access = Access(PIPELINE, own)
            timed("tick", lambda: event("look", overview.seen(pipeline, access)))
            timed("curves", lambda: event("series", drawn(access, pipeline, FINE.span, 8)))
        done = {d["delivered"] for d in snapshot(PIPELINE)["destinations"]}
        held = sum(state(client).values())
    return {**timed.seconds, "commands": sum(sent.values()), "bytes": held, "done": done}


def files(place: Place, count: int) -> None:
    """Makes the home anew, with so many pipelines of two destinations, each with events of its own to read."""
    shutil.rmtree(place.home, ignore_errors=True)
    folder = place.home / "include" / "pipelines"
    folder.mkdir(parents=True)
    events = place.events(10)
    for n in range(count):
        connectors = [source(events), to_file(f"{n}-all", place), to_file(f"{n}-again", place)]
        document = {"version": "2.2", "pipelines": [{"id": f"p{n:04d}", "connectors": connectors}]}
        (folder / f"p{n:04d}.yaml").write_text(json.dumps(document))


@dataclass(frozen=True)
class Cost:
    """What one call costs, on the average: commands sent, seconds, and CPU seconds of this process and of Redis."""

    commands: float
    seconds: float
    own: float
    redis: float


def cost(client: redis.Redis, server: psutil.Process, ids: Sequence[str], call: Callable[[str], Any]) -> Cost:
    """Calls it for each id. For a tenth of them commands are counted, which costs Redis time; the others are timed."""
    few = max(1, len(ids) // 10)
    with watched(client) as sent:
        for id in ids[:few]:
            call(id)
    rest = ids[few:]
    before, began, own = server.cpu_times(), time.perf_counter(), time.process_time()
    for id in rest:
        call(id)
    after, ended, used = server.cpu_times(), time.perf_counter(), time.process_time()
    theirs = after.user + after.system - before.user - before.system
    each = [total / len(rest) for total in (ended - began, used - own, theirs)]
    return Cost(sum(sent.values()) / few, *each)


def crowd(place: Place, count: int) -> dict[str, Any]:
    """So many pipelines: each delivers a micro-batch, then finds nothing new; then looks at all of them."""
    files(place, count)
    ids = [f"p{n:04d}" for n in range(count)]
    looks = Timed()

    def idle(id: str) -> None:
        if plan_run(id, "second").work:
            raise SystemExit(f"{id}: there is nothing new, and still work")

    with serving(place) as (_, client, pid):
        server = psutil.Process(pid)
        pipelines = looks("files", lambda: load_folder(settings().path(settings().pipelines)).pipelines)
        looks("lookup", lambda: get_pipeline(ids[-1]))
        found = {pipeline.id: pipeline for pipeline in pipelines}
        # Each task looks its pipeline up once: told apart, as all tasks are in this process.
        with patch.object(context, "get_pipeline", found.__getitem__):
            one = cost(client, server, ids, lambda id: one_run(Timed(), found[id], "first"))
            nothing = cost(client, server, ids, idle)
        held = sum(state(client).values())
        fill(client, ids)
        rows = looks("list", lambda: overview.rows(pipelines))
        looks("metrics", lambda: overview.exposed(pipelines))
    return {"run": one, "idle": nothing, "bytes": held / count, "rows": len(rows), **looks.seconds}


def fill(client: redis.Redis, ids: Sequence[str]) -> None:
    """Gives each pipeline a series in which something happened in every bucket: what two weeks of a busy one leave."""
    now = int(time.time())
    fields: dict[Any, Any] = {"|now": json.dumps({"at": now // FINE.seconds, "r": 5, "m": 1})}
    for width in (FINE, COARSE):
        bucket = now // width.seconds
        stretch = bucket // width.buckets
        for n in range(stretch - width.stretches + 1, stretch + 1):
            parts = range(width.buckets if n < stretch else bucket % width.buckets)
            fields[f"|{width.seconds}|{n % width.stretches}"] = f"{n}" + "".join(f";{m}{BUCKET}" for m in parts)
    batch = client.pipeline(transaction=False)
    for id in ids:
        batch.hset(Keys(id).series(""), mapping=fields)
    batch.execute()


BUCKET = "r1234m1b345678f12x1"
"""Figures of a bucket, as text: records read, micro-batches, bytes, filtered, nacked."""


def run(place: Place, events: int, destinations: Sequence[int], pipelines: Sequence[int]) -> Result:
    """Pipelines of so many destinations each, with `events`; so many pipelines."""
    made = place.events(events)
    one = {n: wide(place, made, n) for n in destinations}
    all_of = {n: crowd(place, n) for n in pipelines}
    for n, found in one.items():
        if found["done"] != {events}:
            raise SystemExit(f"{n} destinations: {found['done']} of {events} were delivered")
    steps = ("plan", "read and seal", "deliver", "ack", "status", "page", "tick", "curves")
    rows: list[list[object]] = [
        [f"{n} destinations", *(round(found[step], 3) for step in steps), found["commands"], found["bytes"]]
        for n, found in one.items()
    ]
    most, crowded = max(one), max(all_of)
    figures = [
        *(
            Figure(f"{most} destinations: {step}", one[most][step], "≤", TICK if step == "tick" else SHOWN, " s")
            for step in steps
            if step != "deliver"
        ),
        *(
            Figure(f"{crowded:,} pipelines: {look}", all_of[crowded][look], "≤", SHOWN, " s")
            for look in ("list", "metrics")
        ),
    ]
    if len(one) > 1:
        least = min(one)
        for what in ("commands", "bytes"):
            figures.append(
                Figure(f"{what} per further destination", (one[most][what] - one[least][what]) / (most - least))
            )
    for n, found in all_of.items():
        for what, name in (("run", "a run of one micro-batch"), ("idle", "a plan that finds nothing")):
            each: Cost = found[what]
            figures += [
                Figure(f"{n:,} pipelines: {name}, each: commands", each.commands),
                Figure(f"{n:,} pipelines: {name}, each: CPU of Redis", each.redis * 1000, unit=" ms"),
                Figure(f"{n:,} pipelines: {name}, each: CPU of our own", each.own * 1000, unit=" ms"),
            ]
        figures.append(Figure(f"{n:,} pipelines: bytes in Redis, each", found["bytes"]))
        figures.append(Figure(f"{n:,} pipelines: their files read", found["files"], unit=" s"))
        figures.append(Figure(f"{n:,} pipelines: one of them looked up", found["lookup"] * 1000, unit=" ms"))
    return Result(
        f"many: destinations of one pipeline ({events:,} events to each), and pipelines on one Redis",
        ("one pipeline", *(f"{step}, s" for step in steps), "commands sent", "bytes in Redis"),
        rows,
        figures,
        [],
        {"destinations": most, "pipelines": all_of[crowded]["rows"], "bytes": one[most]["bytes"]},
    )
