"""`backlog`: small micro-batches that are sealed already, to HTTP by four tasks: in turn, and several at once.

The receiver answers each request after 50 ms; a task has 64 unconfirmed, so that four send 5,120 a second at most.
Spark's start, and reading, are apart.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.over_http import UNCONFIRMED, to_http
from benchmarks.place import APPS, PIPELINE, Place, serving
from benchmarks.receiver import receiving, summary
from benchmarks.tables import Figure, Result
from benchmarks.tasks import DELAY
from benchmarks.three import source
from conduit_tasks.topology import TOGETHER

TASKS = 4


def run(place: Place, size: int, count: int) -> Result:
    """`count` micro-batches of `size` records each, each way by a driver of its own; by one for both if the place is
    small."""
    place = replace(place, master=f"local[{TASKS}]")
    events, took, commands = size * count, dict[int, float](), dict[int, int]()
    for together in [(1, TOGETHER)] if place.small else [(1,), (TOGETHER,)]:
        with receiving(DELAY) as (url, _):
            limits = {"micro-batch": {"max-records": size}, "lag-budget": {"records": 2 * events * len(together)}}
            all_of_it = source(place.events(events * len(together)))
            place.pipeline(all_of_it, to_http(url, parallelism=TASKS), **limits)
            with serving(place):
                said = place.job(APPS / "backlog.py", PIPELINE, str(count), *map(str, together)).wait()
            seen = summary(url)
        delivered = sum(one["delivered"] for one in said.values())
        if not seen["distinct"] == seen["requests"] == events * len(together) == delivered:
            raise SystemExit(f"{events} events: {delivered} delivered, the receiver saw {seen}")
        for most in together:
            took[most], commands[most] = said[str(most)]["seconds"], said[str(most)]["calls"]
    least = events * DELAY / (TASKS * UNCONFIRMED)
    answers = f"HTTP that answers after {DELAY * 1_000:g} ms"
    return Result(
        f"backlog: {count} micro-batches of {size} records to {answers}, {TASKS} tasks",
        ("micro-batches at once", "seconds", "events/s", "calls of scripts a micro-batch"),
        [[most, took[most], round(events / took[most]), commands[most] / count] for most in took],
        [Figure(f"one at a time / {TOGETHER} at once", took[1] / took[TOGETHER], "≥", 1.5, " ×")],
        [f"The receiver alone bounds it to {least:.2f} s."],
        {"events": events, "one": took[1], "several": took[TOGETHER]},
    )
