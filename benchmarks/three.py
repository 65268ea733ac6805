"""`three`: file → three JSON destinations (all, filtered, one field added), against a job written by hand.

The filtered destination has a destination processor `filter` with a condition on the payload: the cheapest that a
pipeline file offers for a JSON field, because records are made for this destination only. A trigger filter reads
attributes; one made from a payload field by a source's `cloudevents.*` template makes a record of every row at the
source, and writes it back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.data import count_of
from benchmarks.measure import Cost, children
from benchmarks.place import APPS, PIPELINE, Place, serving
from benchmarks.tables import Figure, Result
from conduit_tasks.application import APPLICATION
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.work_needed import needed
from conduit_tasks.pipeline.load import get_pipeline

HEAD = ("who", "seconds", "CPU s", "events/s", "CPU s per M")


def source(events: Path) -> dict[str, Any]:
    settings = {"path": str(events), "format": "jsonl", "settle": "0s"}
    return {"id": "in", "type": "source", "plugin": "file", "settings": settings}


def to_file(name: str, place: Place, *processors: dict[str, Any], **keys: Any) -> dict[str, Any]:
    settings = {"path": str(place.out(f"{name}.jsonl")), "format": "payload"}
    connector = {"id": name, "type": "destination", "plugin": "file", "settings": settings, **keys}
    return {**connector, "processors": list(processors)} if processors else connector


def only_buys() -> dict[str, Any]:
    return {"id": "not-buys", "plugin": "filter", "condition": '{{ ne .Payload.After.kind "buy" }}'}


def seen_added() -> dict[str, Any]:
    return {"id": "seen", "plugin": "field.set", "settings": {"field": ".Payload.After.seen", "value": "bench"}}


def write_three(place: Place, events: Path) -> None:
    """The pipeline file, with the defaults of every other key."""
    connectors = to_file("all", place), to_file("filtered", place, only_buys()), to_file("added", place, seen_added())
    place.pipeline(source(events), *connectors)


def drive(place: Place, redis_pid: int, *options: str, spark: bool = False) -> dict[str, Any]:
    """Everything until nothing is new, in one process, start-up apart; in Spark, unless the place is for small work and
    `spark` does not want it."""
    if place.small and not spark:
        return place.call(APPS / "drive.py", PIPELINE, str(redis_pid), *options, "--small").wait()
    return place.job(APPS / "drive.py", PIPELINE, str(redis_pid), *options).wait()


def expect(place: Place, **lines: int) -> None:
    """Raises SystemExit where a destination does not hold exactly so many lines, or its counters do not add up."""
    broker = open_broker(PIPELINE)
    try:
        if broker.positions.acked("in") != broker.positions.planned("in"):
            raise SystemExit("the source is not acked to its end")
        for name, count in lines.items():
            held = count_of(place.out(f"{name}.jsonl"), b"\n")
            c = broker.deliveries.get(name).counters
            told = c["delivered"]
            if held != count or told != count or c["matched"] != c["delivered"] + c["filtered"] + c.get("nacked", 0):
                raise SystemExit(f"{name}: {count} lines were expected, {held} are there, counters say {c}")
    finally:
        broker.close()


def submit_runs(place: Place, redis_pid: int) -> tuple[Cost, int]:
    """Runs until nothing is new, each node by a submit of its own, destinations two at a time; how many submits. If the
    place is small, only the source's has a Spark.

    `plan` and `acks` are made here, as Airflow's worker would: in the seconds, not in the CPU.
    """
    pipeline = get_pipeline(PIPELINE)

    def node(name: str, run: str) -> int:
        with opened(PIPELINE, run) as context:
            asked = needed(context, name, run).submit
        if not asked:
            return 0
        start = place.call if place.small else place.submit
        start(APPLICATION, "--pipeline", PIPELINE, "--node", name, "--run", run).wait()
        return 1

    submits = 0
    with children(*place.staying(redis_pid)) as cost:
        while plan_run(PIPELINE, run := f"submit-{submits}").work:
            submits += sum(node(s.node, run) for s in pipeline.sources)
            with ThreadPoolExecutor(2) as pool:
                submits += sum(pool.map(lambda d, run=run: node(d.node, run), pipeline.destinations))
            for s in pipeline.sources:
                ack_source(PIPELINE, s.id, run)
    return cost, submits


def row(who: str, events: int, seconds: float, cpu: float) -> list[object]:
    return [who, seconds, cpu, round(events / seconds), cpu / events * 1e6]


def by_hand(place: Place, events: Path, slices: int, *kinds: str) -> list[tuple[dict[str, Any], Cost]]:
    """What it printed of each kind, and the cost of the whole submit: of one for all kinds if the place is small."""
    if not place.small and len(kinds) > 1:
        return [done for kind in kinds for done in by_hand(place, events, slices, kind)]
    place.jvm()
    with children(*place.staying()) as cost:
        arguments = str(events), str(place.out("by-hand")), str(slices), *kinds
        said = place.job(APPS / "handwritten.py", *arguments, bare=True).wait()
    return [(said[kind], cost) for kind in kinds]


def run(place: Place, count: int, slices: int = 10) -> Result:
    """`count` events, start-up apart and together, in one run; `slices`: micro-batches of the streaming job."""
    place.archive()
    events = place.events(count)
    lines = {"all": count, "filtered": count_of(events, b'"kind":"buy"'), "added": count}
    write_three(place, events)
    with serving(place) as (_, _, redis_pid):
        ours = drive(place, redis_pid)
        expect(place, **lines)
    (batch, whole_batch), (streaming, whole_streaming) = by_hand(place, events, slices, "batch", "streaming")
    write_three(place, events)
    with serving(place) as (_, _, redis_pid):
        whole, submits = submit_runs(place, redis_pid)
        expect(place, **lines)
    rows = [
        row("ours", count, ours["seconds"], ours["cpu"]),
        row(f"by hand, streaming, {slices} micro-batches", count, streaming["seconds"], streaming["cpu"]),
        row("by hand, one batch job", count, batch["seconds"], batch["cpu"]),
        row(f"ours with {submits} submits", count, whole.seconds, whole.cpu),
        row("streaming with its submit", count, whole_streaming.seconds, whole_streaming.cpu),
        row("batch with its submit", count, whole_batch.seconds, whole_batch.cpu),
    ]
    figures = [
        Figure("streaming / ours, start-up apart", streaming["seconds"] / ours["seconds"], "≥", 1.5, " ×"),
        Figure("batch / ours, start-up apart", batch["seconds"] / ours["seconds"], "≥", 1.0, " ×"),
        Figure("streaming / ours, CPU, start-up apart", streaming["cpu"] / ours["cpu"], unit=" ×"),
        Figure("batch / ours, CPU, start-up apart", batch["cpu"] / ours["cpu"], unit=" ×"),
        Figure("streaming / ours, together", whole_streaming.seconds / whole.seconds, unit=" ×"),
        Figure("batch / ours, together", whole_batch.seconds / whole.seconds, unit=" ×"),
    ]
    return Result(
        f"three: file → 3 JSON destinations, {count:,} events of 225 bytes",
        HEAD,
        rows,
        figures,
        [stages(ours), "Plan and acks between the submits are in the seconds, not in the CPU."],
        {"events": count, **{f"lines.{k}": v for k, v in lines.items()}, "submits": submits},
    )


def stages(said: dict[str, Any]) -> str:
    """Seconds per node in words; destinations run two at a time, so the sum is more than the whole."""
    parts = ", ".join(f"{node} {seconds:.2f} s" for node, seconds in said["stages"].items())
    return f"Ours by stage, {said['runs']} micro-batches: {parts}."
