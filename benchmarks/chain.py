"""`chain`: three processors on every record at the source, against one `mapInArrow` function with the same written out.

Ours reads, numbers, processes and stores in the spool (fsynced, with sizes and checksums) through the broker; the
hand-written job reads text, works on each line and writes Parquet with the same compression.
"""

from __future__ import annotations

from benchmarks.place import APPS, Place, serving
from benchmarks.tables import Figure, Result
from benchmarks.three import HEAD, drive, expect, row, source, stages, to_file

PROCESSORS = [
    {"id": "seen", "plugin": "field.set", "settings": {"field": ".Payload.After.seen", "value": "bench"}},
    {"id": "price", "plugin": "field.rename", "settings": {"mapping": ".Payload.After.amount:price"}},
    {"id": "short", "plugin": "field.exclude", "settings": {"fields": ".Payload.After.pad"}},
]


def run(place: Place, count: int) -> Result:
    """`count` records through the chain, start-up apart."""
    place.archive()
    events = place.events(count)
    place.pipeline({**source(events), "processors": PROCESSORS}, to_file("all", place))
    with serving(place) as (_, _, redis_pid):
        ours = drive(place, redis_pid)
        expect(place, all=count)
    out = str(place.out("mapped"))
    hand = place.job(APPS / "mapped.py", str(events), out, bare=True).wait()
    if hand["rows"] != count:
        raise SystemExit(f"by hand: {hand['rows']} rows of {count}")
    read = ours["stages"]["sources.in"]
    return Result(
        f"chain: {count:,} records through three processors",
        HEAD,
        [
            row("ours, the source's stage and the delivery", count, ours["seconds"], ours["cpu"]),
            ["ours, the source's stage", read, "", round(count / read), ""],
            row("by hand, one mapInArrow", count, hand["seconds"], hand["cpu"]),
        ],
        [Figure("source's stage / by hand, seconds", read / hand["seconds"], unit=" ×")],
        [stages(ours)],
        {"events": count, "rows": float(hand["rows"])},
    )
