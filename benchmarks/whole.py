"""`whole`: events through everything: Airflow's scheduler, plan, the nodes side by side, delivery, acks.

Embedded stacks of their own, with their real scheduler: one whose tasks work at its Spark Connect server, and one whose
tasks submit by themselves. A run's seconds are those between the request that starts it and its end, with those of
runs that follow it at once. The class-data archive is built before, and one event has passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.data import count_of
from benchmarks.place import PIPELINE, Place, pointing
from benchmarks.tables import Figure, Result
from benchmarks.three import by_hand, only_buys, seen_added, source, to_file
from conduit_tasks.broker.broker import Broker
from conduit_tasks.micro_batch.context import open_broker
from conduit_tasks.spark import cds
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State

CONDUIT = str(Path(sys.executable).parent / "conduit")
PATIENCE = 1_800
"""Seconds that a run may take."""
LOOK, SAMPLE = 0.25, 1.0
"""Seconds between two looks whether a run has ended (longer where it lasts longer: to ask costs, too), and at the
memory of a stack."""
SAME = 1.25
"""What counts as the same memory: a factor."""
FIRST, ONE, NOTHING = "the first event", "one event", "nothing to do"


@dataclass(frozen=True)
class Run:
    """What one request to run came to: seconds until everything was acked, and until it ended; how many DAG runs; the
    tasks that worked; the most memory of the stack, in bytes, in the first and second half of the time."""

    acked: float
    seconds: float
    runs: int
    nodes: int
    memory: tuple[int, int]


@contextmanager
def stack(place: Place, settings: Mapping[str, str]) -> Iterator[None]:
    """A stack in the place's home for the block. `settings`: of its environment."""
    home = place.home
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CONDUIT_", "AIRFLOW"))}
    environment |= {
        "CONDUIT_HOME": str(home),
        "CONDUIT_API_PORT": "0",
        "CONDUIT_CLASS_DATA": str(cds.folder(place.base)),
        **settings,
    }

    def conduit(*arguments: str) -> None:
        done = subprocess.run(
            [CONDUIT, *arguments], env=environment, cwd=home, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"conduit {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")

    try:
        conduit("stack", "up", "--timeout", str(PATIENCE))
        yield
    finally:
        conduit("stack", "down", "--deadline", "1")


def run(place: Place, count: int, backlog: int) -> Result:
    """`count` events at a Connect server and with submits, against a job written by hand; then a `backlog`."""
    place.archive()
    write_pipeline(place)
    events = place.events(count)
    batch, streaming = (cost.seconds for _, cost in by_hand(place, events, 10, "batch", "streaming"))
    submits = on_a_stack(place, [count], {"CONDUIT_SPARK_CONNECT": "off"})
    warm = on_a_stack(place, [count, backlog], {})
    whole, drained = warm[f"{count:,} events"], warm[f"{backlog:,} events"]
    ways = {"warm": warm, "submits": submits}
    rows = [[f"{name}, {how}", *row(one)] for how, runs in ways.items() for name, one in runs.items()]
    rows += [["by hand, one batch job, its submit included", 0.0, batch, 0, 0, 0]]
    rows += [["by hand, streaming, its submit included", 0.0, streaming, 0, 0, 0]]
    apart = submits[f"{count:,} events"]
    figures = [
        Figure("one event, warm: seconds from the request to the ack", warm[ONE].acked, "≤", 3, " s"),
        Figure("one event, submits: the same", submits[ONE].acked, "≤", 12, " s"),
        Figure("nothing to do: seconds", warm[NOTHING].seconds, "≤", 5, " s"),
        Figure("nothing to do: nodes that work", float(warm[NOTHING].nodes), "≤", 0),
        Figure("batch by hand / ours, warm", batch / whole.seconds, "≥", 1.0, " ×"),
        Figure("streaming by hand / ours, warm", streaming / whole.seconds, "≥", 1.5, " ×"),
        Figure("streaming by hand / ours, submits", streaming / apart.seconds, "≥", 0.8, " ×"),
        Figure("the backlog: DAG runs", float(drained.runs), "≤", 1),
        Figure("the backlog: events/s", backlog / drained.seconds, "≥", 150_000),
        Figure("the backlog: memory, second half / first", drained.memory[1] / drained.memory[0], "≤", SAME, " ×"),
    ]
    return Result(
        f"whole: file → 3 JSON destinations by Airflow's scheduler, {count:,} and {backlog:,} events of 225 bytes",
        HEAD,
        rows,
        figures,
        ["Memory: what is resident of all that the stack runs; shared pages count once for each process."],
        facts(warm),
    )


HEAD = ("run", "acked after s", "seconds", "DAG runs", "nodes that worked", "MiB")


def row(one: Run) -> list[object]:
    return [one.acked, one.seconds, one.runs, one.nodes, max(one.memory) >> 20]


def facts(runs: Mapping[str, Run]) -> dict[str, float]:
    return {f"nodes.{name}": float(one.nodes) for name, one in runs.items()}


def write_pipeline(place: Place) -> None:
    """Yearly: nothing runs but what is measured."""
    connectors = to_file("all", place), to_file("filtered", place, only_buys()), to_file("added", place, seen_added())
    place.pipeline(
        source(place.home / "in" / "bench" / "*.jsonl"), *connectors, schedule="0 0 1 1 *", spool={"retention": "0s"}
    )


def on_a_stack(place: Place, counts: list[int], settings: Mapping[str, str]) -> dict[str, Run]:
    write_pipeline(place)
    with stack(place, settings):
        layout = Layout(place.home)
        state = State.load(layout)
        with Api(state.api_url, password=load_secrets(layout)["password"]) as api:
            return measure(place, counts, api, state)


def measure(place: Place, counts: list[int], api: Api, state: State) -> dict[str, Run]:
    """By name, the runs of a pipeline that is written, on a stack that is up."""
    wait(lambda: api.dag(PIPELINE) and api.request("GET", f"/dags/{PIPELINE}/dagRuns")["total_entries"])
    wait(lambda: not api.active_runs(PIPELINE))
    folder = place.home / "in" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Run] = {}
    with pointing(place.home, state.redis_url):
        broker = open_broker(PIPELINE)
        for name in (FIRST, ONE):
            (folder / f"{name}.jsonl").write_text('{"kind":"one"}\n')
            found[name] = _run(api, broker, state)
        for count in counts:
            os.link(place.events(count), folder / f"{count}.jsonl")
            found[f"{count:,} events"] = _run(api, broker, state)
        found[NOTHING] = _run(api, broker, state)
        broker.close()
    held, due = count_of(place.out("all.jsonl"), b"\n"), 2 + sum(counts)
    if held != due:
        raise SystemExit(f"{due} lines were expected, {held} are there")
    return found


def _run(api: Api, broker: Broker, state: State) -> Run:
    run_id, sealed = f"bench__{uuid.uuid4()}", broker.micro_batches.latest_sealed()
    acked, memory, now, looked = 0.0, list[tuple[float, int]](), 0.0, 0.0
    began = time.perf_counter()
    api.trigger(PIPELINE, run_id, {})
    while now - looked < max(LOOK, now / 40) or api.active_runs(PIPELINE):
        looked = now if now - looked >= max(LOOK, now / 40) else looked
        if now > PATIENCE:
            raise SystemExit(f"{run_id} does not end; see .conduit/logs in the work folder's home")
        if (
            not acked
            and broker.micro_batches.latest_sealed() > sealed
            and broker.positions.planned("in") == broker.positions.acked("in")
        ):
            acked = now
        if not memory or now - memory[-1][0] > SAMPLE:
            memory.append((now, _memory(state)))
        time.sleep(0.02)
        now = time.perf_counter() - began
    seconds = time.perf_counter() - began
    runs = api.request("GET", f"/dags/{PIPELINE}/dagRuns", params={"order_by": "-run_after", "limit": 100})["dag_runs"]
    ours = runs[: [r["dag_run_id"] for r in runs].index(run_id) + 1]
    tasks = [task for r in ours for task in api.tasks(PIPELINE, r["dag_run_id"])]
    nodes = [t for t in tasks if t["task_id"].startswith(("sources.", "destinations.")) and t["state"] == "success"]
    if bad := [r["dag_run_id"] for r in ours if r["state"] != "success"]:
        raise SystemExit(f"{', '.join(bad)} failed; see .conduit/logs in the work folder's home")
    halves = [max((m for at, m in memory if (at > seconds / 2) is late), default=1) for late in (False, True)]
    return Run(acked or seconds, seconds, len(ours), len(nodes), (halves[0], halves[1]))


def _memory(state: State) -> int:
    """Bytes that everything below the stack's parts holds."""
    total = 0
    for part in state.processes.values():
        try:
            top = psutil.Process(part.pid)
            total += sum(p.memory_info().rss for p in (top, *top.children(recursive=True)))
        except psutil.NoSuchProcess:
            continue
    return total


def wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("Airflow did not find the pipeline in time; see .conduit/logs in the work folder's home")
        time.sleep(0.2)
