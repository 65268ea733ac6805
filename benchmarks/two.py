"""`two`: file → file + filtered file, start-up apart. See `three` for how the filter is written."""

from __future__ import annotations

from benchmarks.data import count_of
from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import HEAD, drive, expect, only_buys, row, source, stages, to_file


def run(place: Place, count: int) -> Result:
    """`count` events."""
    place.archive()
    events = place.events(count)
    lines = {"all": count, "filtered": count_of(events, b'"kind":"buy"')}
    place.pipeline(source(events), to_file("all", place), to_file("filtered", place, only_buys()))
    with serving(place) as (_, _, redis_pid):
        ours = drive(place, redis_pid)
        expect(place, **lines)
    return Result(
        f"two: file → file + filtered file, {count:,} events of 225 bytes",
        HEAD,
        [row("ours", count, ours["seconds"], ours["cpu"])],
        [
            Figure("events/s", count / ours["seconds"], "≥", 150_000),
            Figure("CPU s per M", ours["cpu"] / count * 1e6, "≤", 12),
        ],
        [stages(ours)],
        {"events": count, **{f"lines.{k}": v for k, v in lines.items()}},
    )
