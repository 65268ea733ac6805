"""`whole`: events through everything: Airflow's scheduler, plan, submits, delivery, acks; and a run's fixed cost.

An embedded stack of its own, with its real scheduler. A run's seconds are those between Airflow's start and end of it;
a submit's are those of its task. The class-data archive is built before; nothing else is warmed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.data import count_of
from benchmarks.place import PIPELINE, Place
from benchmarks.tables import Figure, Result
from benchmarks.three import source, to_file
from conduit_tasks.spark import cds
from conduit_tasks.stack.api import Api
from conduit_tasks.stack.environment import load_secrets
from conduit_tasks.stack.layout import Layout, State

CONDUIT = str(Path(sys.executable).parent / "conduit")
PATIENCE = 900
"""Seconds that a run may take."""


@dataclass(frozen=True)
class Run:
    """One DAG run: its seconds, and those of each task that submitted."""

    seconds: float
    submits: list[float]


@contextmanager
def stack(place: Place) -> Iterator[Callable[..., str]]:
    """A stack in the place's home for the block; gives a function that runs `conduit` there."""
    home = place.home
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CONDUIT_", "AIRFLOW"))}
    environment |= {
        "CONDUIT_HOME": str(home),
        "CONDUIT_API_PORT": "0",
        "CONDUIT_CLASS_DATA": str(cds.folder(place.base)),
    }

    def conduit(*arguments: str) -> str:
        done = subprocess.run(
            [CONDUIT, *arguments], env=environment, cwd=home, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"conduit {' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    try:
        conduit("stack", "up", "--timeout", str(PATIENCE))
        yield conduit
    finally:
        conduit("stack", "down", "--deadline", "1")


def run(place: Place, count: int) -> Result:
    """`count` events in one micro-batch, then one event, then nothing; on a stack of its own."""
    place.archive()
    write_pipeline(place, count)
    with stack(place) as conduit, _api(place.home) as api:
        return measure(place, count, conduit, api)


def write_pipeline(place: Place, count: int) -> None:
    """Yearly: nothing runs but what is measured."""
    keys = {"schedule": "0 0 1 1 *", "micro-batch": {"max-records": count, "max-bytes": "8GiB"}}
    place.pipeline(source(place.home / "in" / "bench" / "*.jsonl"), to_file("all", place), **keys)


def measure(place: Place, count: int, conduit: Callable[..., str], api: Api) -> Result:
    """The runs of a pipeline that is written, on a stack that is up. `conduit`: runs the command in its home."""
    events = place.events(count)
    _wait(lambda: api.dag(PIPELINE) and api.request("GET", f"/dags/{PIPELINE}/dagRuns")["total_entries"])
    _wait(lambda: not api.active_runs(PIPELINE))
    whole = _run(api, conduit, place, lambda folder: os.link(events, folder / "a.jsonl"))
    one = _run(api, conduit, place, lambda folder: (folder / "b.jsonl").write_text('{"kind":"one"}\n'))
    empty = _run(api, conduit, place, lambda _: None)
    held = count_of(place.out("all.jsonl"), b"\n")
    if held != count + 1:
        raise SystemExit(f"{count + 1} lines were expected, {held} are there")
    runs = {f"{count:,} events": whole, "one event": one, "nothing to do": empty}
    beyond = one.seconds - sum(one.submits)
    return Result(
        f"whole: file → file by Airflow's scheduler, {count:,} events of 225 bytes",
        ("run", "seconds", "submits", "of it in submits"),
        [[name, r.seconds, len(r.submits), sum(r.submits)] for name, r in runs.items()],
        [
            Figure("events/s, everything together", count / whole.seconds, "≥", 100_000),
            Figure("one event: seconds beyond its two submits", beyond, "≤", 5, " s"),
            Figure("nothing to do: seconds", empty.seconds, "≤", 5, " s"),
            Figure("nothing to do: submits", float(len(empty.submits)), "≤", 0),
        ],
        ["A submit's seconds are those of its Airflow task, its process's start included."],
        {
            "events": float(held),
            "submits": float(len(whole.submits)),
            "submits.one": float(len(one.submits)),
            "submits.nothing": float(len(empty.submits)),
        },
    )


def _run(api: Api, conduit: Callable[..., str], place: Place, put: Callable[[Path], Any]) -> Run:
    folder = place.home / "in" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    put(folder)
    conduit("run", PIPELINE, "--timeout", str(PATIENCE))
    found = api.request("GET", f"/dags/{PIPELINE}/dagRuns", params={"order_by": "-run_after", "limit": 1})["dag_runs"]
    tasks = api.tasks(PIPELINE, found[0]["dag_run_id"])
    submits = [
        float(t["duration"])
        for t in tasks
        if t["task_id"].startswith(("sources.", "destinations.")) and t["state"] == "success"
    ]
    return Run(_seconds(found[0]), submits)


def _seconds(run: dict[str, Any]) -> float:
    return (datetime.fromisoformat(run["end_date"]) - datetime.fromisoformat(run["start_date"])).total_seconds()


def _api(home: Path) -> Api:
    return Api(State.load(Layout(home)).api_url, password=load_secrets(Layout(home))["password"])


def _wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit("Airflow did not find the pipeline in time; see .conduit/logs in the work folder's home")
        time.sleep(0.2)
