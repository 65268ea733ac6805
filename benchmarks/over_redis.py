"""`redis`: commands and bytes that delivering costs in the broker's Redis.

Commands are counted twice: those that clients sent (MONITOR), and those with what scripts call inside the server (the
difference of INFO commandstats). Bytes are MEMORY USAGE of the pipeline's keys once everything is delivered and acked;
those of a dead letter are what the state has more than without dead letters, through their number. Two sizes are run,
so that what a run costs whatever it carries is told from what events cost.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.broker_state import calls, state, watched
from benchmarks.data import count_of
from benchmarks.over_http import UNCONFIRMED, to_http
from benchmarks.place import Place, serving
from benchmarks.receiver import receiving
from benchmarks.tables import Figure, Result
from benchmarks.three import drive, source, to_file
from conduit_tasks.micro_batch.context import open_broker

REFUSED = {"id": "no-buys", "plugin": "error", "condition": '{{ eq .Payload.After.kind "buy" }}'}


def once(place: Place, events: Any, destination: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """One pipeline with one destination: commands by kind, bytes, counters."""
    place.pipeline(source(events), destination, **keys)
    with serving(place) as (_, client, redis_pid):
        before = calls(client)
        with watched(client) as sent:
            drive(place, redis_pid)
        after = calls(client)
        broker = open_broker("bench")
        counters = broker.deliveries.get(destination["id"]).counters
        broker.close()
        held = sum(state(client).values())
    # Looking costs two INFO, a MONITOR, its connection, an ECHO and the benchmark's own hello.
    own = Counter({"info": 1, "monitor": 1, "echo": 1})
    return {"sent": sent, "all": after - before - own, "bytes": held, **counters}


def run(place: Place, count: int, dead: int) -> Result:
    """`count` events delivered to a file and over HTTP; `dead` events of which a quarter become dead letters."""
    place.archive()
    events, few = place.events(count), place.events(dead)
    to_all = to_file("all", place)
    with receiving() as (url, _):
        ways = {"a file": to_all, f"HTTP, {UNCONFIRMED} unconfirmed": to_http(url)}
        done = {who: (once(place, few, to), once(place, events, to)) for who, to in ways.items()}
    letters = once(place, few, to_file("all", place, REFUSED), **{"dead-letter-queue": {"window-size": 0}})
    nacked, refused = letters["nacked"], count_of(few, b'"kind":"buy"')
    for who, pair in done.items():
        if (told := [of["delivered"] for of in pair]) != [dead, count]:
            raise SystemExit(f"{who}: {told} delivered of {dead} and {count}")
    if nacked != refused or letters["delivered"] != dead - refused:
        raise SystemExit(f"{refused} of {dead} events were to be refused; counters say {letters}")
    rows: list[list[object]] = []
    figures = []
    for who, (small, large) in done.items():
        sent, inner = ([sum(of[kind].values()) for of in (small, large)] for kind in ("sent", "all"))
        rows += [[who, f"{n:,}", s, i, of["bytes"]] for n, s, i, of in zip((dead, count), sent, inner, (small, large))]
        more = (count - dead) / 1000
        figures.append(Figure(f"{who}: sent per 1,000 events, all of it", sent[1] / count * 1000, "≤", 1))
        figures.append(Figure(f"{who}: sent per 1,000 further events", (sent[1] - sent[0]) / more, "≤", 1))
        figures.append(Figure(f"{who}: the same with scripts' calls", (inner[1] - inner[0]) / more))
        figures.append(
            Figure(f"{who}: bytes per further event", (large["bytes"] - small["bytes"]) / more / 1000, "≤", 0.01)
        )
    per_letter = (letters["bytes"] - done["a file"][0]["bytes"]) / nacked
    figures.append(Figure(f"bytes per dead letter, {nacked:,} of them", per_letter, "≤", 200))
    most = ", ".join(f"{name} {n}" for name, n in done[f"HTTP, {UNCONFIRMED} unconfirmed"][1]["sent"].most_common(6))
    return Result(
        "redis: what the broker's state costs",
        ("delivered to", "events", "commands sent", "with scripts' calls", "bytes at the end"),
        rows,
        figures,
        [f"Most of what was sent over HTTP: {most}. Less than 0.01 bytes per event is a number with more digits."],
        {"events": count, "nacked": nacked, "delivered": letters["delivered"]},
    )
