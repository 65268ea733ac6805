"""`submit`: what starting a driver costs: a bare `spark-submit`, with the archive and our options, our application.

Rounds are interleaved, so that what else the machine does hits all of them; the medians are compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import median

from benchmarks.measure import Cost, children
from benchmarks.place import APPS, PIPELINE, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import source, to_file
from conduit_tasks.application import APPLICATION
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.work_needed import needed

BARE, FAST, OURS = "no-op, bare spark-submit", "no-op, archive and fast options", "our application, nothing to read"


def run(place: Place, rounds: int) -> Result:
    """`rounds` of each."""
    place.archive()
    place.pipeline(source(place.events(1_000)), to_file("all", place))
    costs: defaultdict[str, list[Cost]] = defaultdict(list)
    with serving(place) as (_, _, redis_pid):
        starts: dict[str, Callable[[], object]] = {
            BARE: lambda: place.submit(APPS / "noop.py", bare=True).wait(),
            FAST: lambda: place.submit(APPS / "noop.py").wait(),
            OURS: lambda: place.submit(
                APPLICATION, "--pipeline", PIPELINE, "--node", "sources.in", "--run", "bench"
            ).wait(),
        }
        for _ in range(rounds):
            for who, start in starts.items():
                with children(*place.staying(redis_pid)) as cost:
                    start()
                costs[who].append(cost)
        with opened(PIPELINE, "bench") as context:
            asked = needed(context, "sources.in", "bench").submit
    seconds = {who: median(c.seconds for c in of) for who, of in costs.items()}
    cpu = {who: median(c.cpu for c in of) for who, of in costs.items()}
    rows = [
        [who, seconds[who], min(c.seconds for c in of), max(c.seconds for c in of), cpu[who]]
        for who, of in costs.items()
    ]
    return Result(
        f"submit: starting a driver, median of {rounds} interleaved rounds",
        ("who", "seconds", "least", "most", "CPU s"),
        rows,
        [
            Figure("fast / bare, CPU", cpu[FAST] / cpu[BARE], "≤", 0.5, " ×"),
            Figure("fast / bare, seconds", seconds[FAST] / seconds[BARE], unit=" ×"),
            Figure("JVMs of a node with nothing to do", float(asked), "≤", 0),
        ],
        ["The operator looks for work first, so that our application is not started with nothing to do; here it is."],
        {"rounds": rounds, "submits": float(sum(len(of) for of in costs.values()))},
    )
