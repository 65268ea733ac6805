"""`redis`: commands and bytes that delivering costs in the broker's Redis.

Commands are counted twice: those that clients sent (MONITOR), and those with what scripts call inside the server (the
difference of INFO commandstats). Bytes are MEMORY USAGE of the pipeline's keys once everything is delivered and acked;
those of a dead letter are what the state has more than without dead letters, through their number.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.broker_state import calls, state, watched
from benchmarks.data import count_of
from benchmarks.over_http import to_http
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
        counters = broker.delivery(destination["id"]).counters
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
        done = {"a file": once(place, events, to_all), "HTTP, 64 unconfirmed": once(place, events, to_http(url))}
    plain = once(place, few, to_all)
    letters = once(place, few, to_file("all", place, REFUSED), **{"dead-letter-queue": {"window-size": 0}})
    nacked, refused = letters["nacked"], count_of(few, b'"kind":"buy"')
    for who, of in {**done, "few": plain}.items():
        if of["delivered"] != (dead if who == "few" else count):
            raise SystemExit(f"{who}: {of['delivered']} delivered of {count}")
    if nacked != refused or letters["delivered"] != dead - refused:
        raise SystemExit(f"{refused} of {dead} events were to be refused; counters say {letters}")
    per_letter = (letters["bytes"] - plain["bytes"]) / nacked
    rows: list[list[object]] = []
    figures = []
    for who, of in done.items():
        sent, everything = (sum(of[kind].values()) / count * 1000 for kind in ("sent", "all"))
        rows.append([who, f"{count:,}", sent, everything, of["bytes"]])
        figures.append(Figure(f"{who}: commands sent per 1,000 events", sent, "≤", 1))
        figures.append(Figure(f"{who}: with those inside scripts", everything))
    rows.append(["a file, a tenth of the events or less", f"{dead:,}", "", "", plain["bytes"]])
    figures.append(
        Figure("bytes per delivered event", (done["a file"]["bytes"] - plain["bytes"]) / (count - dead), "≤", 0.01)
    )
    figures.append(Figure(f"bytes per dead letter, {nacked:,} of them", per_letter, "≤", 200))
    most = ", ".join(f"{name} {n}" for name, n in done["HTTP, 64 unconfirmed"]["sent"].most_common(6))
    return Result(
        "redis: what the broker's state costs",
        ("delivered to", "events", "sent per 1,000", "with scripts'", "bytes at the end"),
        rows,
        figures,
        [f"Most of what was sent over HTTP: {most}. Under 0.01 bytes per event is the length of a few numbers."],
        {"events": count, "nacked": nacked, "delivered": letters["delivered"]},
    )
