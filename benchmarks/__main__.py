"""`python -m benchmarks [NAME …]`: runs the benchmarks and prints a table each; all of them by default.

Sizes: full (those of docs/benchmarks.md), `--moderate` (a shared machine), `--quick` (does everything once, small).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from benchmarks import (
    backlog,
    chain,
    gateway,
    growth,
    largest,
    longest,
    many,
    over_http,
    over_kafka,
    over_redis,
    over_servers,
    over_standalone,
    stream,
    submits,
    tasks,
    three,
    topics,
    two,
    whole,
)
from benchmarks.measure import adopt
from benchmarks.place import ROOT, Place
from benchmarks.tables import Result

Sizes = tuple[int, ...]
RUN: dict[str, tuple[Callable[[Place, Sizes], Result], dict[str, Sizes]]] = {
    "two": (lambda place, n: two.run(place, *n), {"full": (1_000_000,), "moderate": (1_000_000,), "quick": (1_000,)}),
    "submit": (lambda place, n: submits.run(place, *n), {"full": (5,), "moderate": (3,), "quick": (1,)}),
    "http": (
        lambda place, n: over_http.run(place, *n),
        {"full": (100_000,), "moderate": (100_000,), "quick": (1_000,)},
    ),
    "three": (
        lambda place, n: three.run(place, *n),
        {"full": (1_000_000,), "moderate": (500_000,), "quick": (1_000, 2)},
    ),
    "chain": (
        lambda place, n: chain.run(place, *n),
        {"full": (1_000_000,), "moderate": (500_000,), "quick": (1_000,)},
    ),
    "backlog": (
        lambda place, n: backlog.run(place, *n),
        {"full": (500, 40), "moderate": (500, 16), "quick": (200, 5)},
    ),
    "tasks": (
        lambda place, n: tasks.run(place, *n),
        {
            "full": (200_000, 500_000, 1_000_000),
            "moderate": (20_000, 500_000, 500_000),
            "quick": (1_000, 64_000, 1_000),
        },
    ),
    "servers": (
        lambda place, n: over_servers.run(place, *n),
        {"full": (500_000, 500), "moderate": (200_000, 500), "quick": (1_000, 100)},
    ),
    "kafka": (
        lambda place, n: over_kafka.run(place, *n),
        {"full": (1_000_000,), "moderate": (500_000,), "quick": (1_000,)},
    ),
    "redis": (
        lambda place, n: over_redis.run(place, *n),
        {"full": (500_000, 4_000), "moderate": (100_000, 2_000), "quick": (1_000, 400)},
    ),
    "standalone": (
        lambda place, n: over_standalone.run(place, *n),
        {"full": (500_000,), "moderate": (200_000,), "quick": (1_000,)},
    ),
    "growth": (
        growth.run,
        {"full": (100_000, 1_000_000, 5_000_000), "moderate": (100_000, 1_000_000), "quick": (200, 1_000)},
    ),
    "whole": (
        lambda place, n: whole.run(place, *n),
        {"full": (1_000_000, 20_000_000), "moderate": (1_000_000, 5_000_000), "quick": (1_000, 2_000)},
    ),
    "largest": (
        lambda place, n: largest.run(place, *n),
        {"full": (50_000_000,), "moderate": (5_000_000,), "quick": (2_000,)},
    ),
    "stream": (
        lambda place, n: stream.run(place, *n),
        {"full": (600, 600), "moderate": (120, 60), "quick": (2, 60)},
    ),
    "topics": (
        lambda place, n: topics.run(place, *n),
        {"full": (600, 600), "moderate": (120, 60), "quick": (2, 60)},
    ),
    "many": (
        lambda place, n: many.run(place, n[0], n[1:-1], n[-1:]),
        {"full": (1_000, 1, 20, 200, 1_000), "moderate": (1_000, 1, 20, 200, 1_000), "quick": (100, 1, 4, 3)},
    ),
    "scripts": (lambda place, n: longest.run(place, *n), {"full": (5,), "moderate": (3,), "quick": (1, 100, 8)}),
    "gateway": (
        lambda place, n: gateway.run(place, *n),
        {"full": (50_000, 10_000), "moderate": (20_000, 3_000), "quick": (200, 8)},
    ),
}
"""Name → how to run it, and its numbers of events (`submit`: rounds; `stream`, `topics`: seconds of load, and that runs
last). Those that share a server in a small place stand beside each other."""


def main(argv: list[str] | None = None) -> int:
    """Runs what was asked for; 1 where a figure is not met (never with --quick, whose sizes say nothing)."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RUN)}; default all")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick", help="small sizes")
    parser.add_argument("--moderate", dest="size", action="store_const", const="moderate", help="for a shared machine")
    parser.add_argument("--json", action="store_true", help="a JSON object per benchmark instead of tables")
    parser.add_argument("--work", type=Path, default=ROOT / ".conduit" / "bench", help="a folder for events and output")
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in RUN]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; known are {', '.join(RUN)}")
    size = options.size or "full"
    adopt()
    options.work.mkdir(parents=True, exist_ok=True)
    # A small size on one core: what starting a Python worker for each of them costs is most of it.
    place = Place(options.work.resolve(), "local[1]" if size == "quick" else "local[*]", small=size == "quick")
    if not options.json:
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}, size {size}\n")
    met = True
    try:
        for name in options.names or RUN:
            run, sizes = RUN[name]
            result = run(place, sizes[size])
            place.kept.end(idle=True)
            print(json.dumps({"name": name, **asdict(result)}) if options.json else result.text(), flush=True)
            met = met and all(figure.met is not False for figure in result.figures)
    finally:
        place.kept.end()
    return 0 if met or size == "quick" else 1


if __name__ == "__main__":
    sys.exit(main())
