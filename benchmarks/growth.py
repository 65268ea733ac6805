"""`growth`: the same pipeline with ten and fifty times the events: seconds, state in Redis, memory of the driver.

Start-up apart; micro-batches of the default 500,000, so that more events are more micro-batches, never larger ones.
Nothing is retained (`spool.retention: 0s`): by default every micro-batch of the last 24 hours stays, about 2 KB each.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from benchmarks.data import count_of
from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, expect, only_buys, source, stages, to_file

SAME = 1.25
"""What counts as the same state or memory: a factor, because allocators and ids' lengths vary."""


def once(place: Place, count: int) -> dict[str, Any]:
    events = place.events(count)
    place.pipeline(
        source(events), to_file("all", place), to_file("filtered", place, only_buys()), spool={"retention": "0s"}
    )
    with serving(place) as (_, _, redis_pid):
        said = drive(place, redis_pid, "--weigh")
        expect(place, all=count, filtered=count_of(events, b'"kind":"buy"'))
    return said


def run(place: Place, counts: Sequence[int]) -> Result:
    """The sizes in `counts`, rising."""
    place.archive()
    said = {count: once(place, count) for count in counts}
    rows: list[Sequence[object]] = [
        [
            f"{count:,}",
            s["seconds"],
            round(count / s["seconds"]),
            s["runs"],
            s["state_bytes"],
            (s["memory_python"] + s["memory_java"]) >> 20,
        ]
        for count, s in said.items()
    ]
    figures = []
    for small, large in pairwise(counts):
        a, b, times = said[small], said[large], large / small
        memory = [s["memory_python"] + s["memory_java"] for s in (a, b)]
        name = f"{small:,} → {large:,}"
        # The figure is asked for tenfold: 5 % more than in proportion.
        figures.append(Figure(f"{name}: seconds", b["seconds"] / a["seconds"], "≤", times * 1.05, " ×"))
        figures.append(Figure(f"{name}: Redis", b["state_bytes"] / a["state_bytes"], "≤", SAME, " ×"))
        figures.append(Figure(f"{name}: driver's memory", memory[1] / memory[0], "≤", SAME, " ×"))
    return Result(
        "growth: file → file + filtered file",
        ("events", "seconds", "events/s", "micro-batches", "Redis, bytes", "driver, MiB"),
        rows,
        figures,
        [
            "Redis: the most that the pipeline's keys held between two stages (MEMORY USAGE). "
            "Driver: the peak resident memory of its JVM and its Python process.",
            stages(said[counts[-1]]),
        ],
        {"events": sum(counts), **{f"state.{count}": s["state_bytes"] for count, s in said.items()}},
    )
