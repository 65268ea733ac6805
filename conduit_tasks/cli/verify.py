"""`conduit verify`: checks the guarantees while everything is killed at the worst moments (SEMANTICS X6)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from conduit_tasks.cli.output import note, print_json

if TYPE_CHECKING:
    from conduit_tasks.verify.result import Result

COLUMNS = ("events", "runs", "points", "faults", "loss", "inversions", "duplicates", "bound", "unacked", "handovers")
LINES = 50
"""Lines of progress, about; at most one line per ten seeds."""
MANY = 500
"""Seeds from which on details of passed seeds are not kept: a long run needs no more memory than a short one."""


def verify(  # noqa: PLR0917 - options, not arguments
    seeds: Annotated[int | None, typer.Option(min=0, help="How many seeds; 100, or 1 with --seed.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The first seed; alone: this history again.")] = None,
    processes: Annotated[int, typer.Option(min=0, help="Seeds with real processes, killed by SIGKILL.")] = 0,
    events: Annotated[int, typer.Option(min=1, max=100_000, help="Events of a seed, about.")] = 16,
    jobs: Annotated[int | None, typer.Option(min=1, help="Seeds at a time; one per processor.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="With --json: every operation of each seed.")] = False,
) -> None:
    """Break a pipeline of its own by the faults that a seed draws, restart it, and check its guarantees.

    Uses a Redis and folders of its own, nothing of this installation. Exit code 0 if every guarantee held, 1 with the
    seeds that violated one, 2 for wrong input.
    """
    from conduit_tasks.verify.processes import kill_processes
    from conduit_tasks.verify.server import cleaned_up
    from conduit_tasks.verify.workers import verify as live

    count = seeds if seeds is not None else 0 if processes else 100 if seed is None else 1
    first = 1 if seed is None else seed
    if not count and not processes:
        raise typer.BadParameter("--seeds 0 and --processes 0 leave nothing to do", param_hint="--seeds")
    if not json:
        _print("seed", COLUMNS)
    results = []
    with cleaned_up():
        lived = live(range(first, first + count), events, jobs or os.cpu_count() or 1, trace=trace)
        try:
            for result in _progress(lived, count, json):
                results.append(result)
        except (KeyboardInterrupt, SystemExit):
            _stopped(first, count, events, results)
            raise
        for result in kill_processes(range(first, first + processes), max(events, 200)):
            _tell(result, json)
            results.append(result)
    _conclude(results, json)


def _stopped(first: int, count: int, events: int, results: list[Result]) -> None:
    """Prints the command that goes on with the first seed that has not ended."""
    ended = {result.seed for result in results}
    at = next(seed for seed in range(first, first + count + 1) if seed not in ended)
    broken = [result for result in results if not result.ok]
    note(f"stopped after {len(results):,} of {count:,} seeds, {len(broken) or 'none'} violated")
    for result in broken:
        note(f"violated: {result.name}; see it again with: {result.again}")
    if left := first + count - at:
        note(f"go on with: conduit verify --seed {at} --seeds {left} --events {events}")


def _progress(results: Iterable[Result], count: int, json: bool) -> Iterator[Result]:
    began, broken, every = time.monotonic(), 0, max(10, count // LINES)
    for n, result in enumerate(results, 1):
        broken += not result.ok
        if not json and (not result.ok or count <= 20):
            _tell(result, json)
        if n % every == 0 and count > 20:
            left = (time.monotonic() - began) / n * (count - n)
            note(f"{n:,} of {count:,} seeds, {broken or 'none'} violated; about {left / 60:,.0f} min left")
        yield result if count < MANY or not result.ok else result.short()


def _tell(result: Result, json: bool) -> None:
    if json:
        return
    _print(result.name, [result.to_json()["counts"][name] for name in COLUMNS])
    for said in result.found.violations:
        print(f"    {said}")
    if not result.ok:
        print(f"    again: {result.again}", flush=True)


def _print(first: str, cells: Iterable[Any]) -> None:
    print(f"{first:<14}" + "".join(f"{c:>11,}" if isinstance(c, int) else f"{c:>11}" for c in cells), flush=True)


def _conclude(results: list[Result], json: bool) -> None:
    broken = [r for r in results if not r.ok]
    totals = {name: sum(r.to_json()["counts"][name] for r in results) for name in COLUMNS}
    if json:
        print_json({"ok": not broken, "totals": totals, "seeds": [r.to_json() for r in results]})
    else:
        _print(f"{len(results)} seeds", [totals[name] for name in COLUMNS])
        for result in broken:
            note(f"violated: {result.name}; see it again with: {result.again}")
    if broken:
        raise typer.Exit(1)
