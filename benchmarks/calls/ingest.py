"""What a gateway stores, and what its source plans and acks."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.calls.parts import (
    Call,
    K,
    b,
)
from conduit_tasks.gateway.commit import GROUP_CHUNKS
from conduit_tasks.gateway.pipe import LANES

STREAMS = {"stream": K.ingest("a"), "sizes": K.ingest_sizes("a"), "state": K.ingested("a")}
CHUNK = 800
GATEWAY = 4_000
"""Entries of 64 KiB that a gateway source holds here."""
LARGE = 64
"""The same of 4 MiB."""


def cases() -> dict[str, Call]:
    """See `benchmarks.calls`."""
    return {
        "ingest_add": ingested(),
        "ingest_add one by one": ingested(pipe=True),
        "ingest_add many lanes": ingested(lanes=LANES),
        "ingest_add of signed requests": ingested(signed=True),
        "ingest_restore": Call(
            STREAMS,
            {
                "journal": "",
                "ids": [f"{n}-{n * CHUNK}" for n in range(1, 1 + b("ingest_restore", "chunks"))],
                "counts": [1] * b("ingest_restore", "chunks"),
                "chunks": [b"x" * CHUNK] * b("ingest_restore", "chunks"),
            },
            {},
        ),
        "ingest_settle": Call(
            {"seen": K.ingest_seen("a")},
            {
                "keep": 720,
                "marks": [(f"s{n:019}", int(time.time()) + 360) for n in range(b("ingest_settle", "marks"))],
            },
            {},
        ),
        "ingest_plan": Call(
            STREAMS,
            {
                **{"after": -1, "records": 0, "size": 0, "slice_records": 1_600, "slice_size": 1 << 40},
            },
            {K.ingested("a"): {"last": str(GATEWAY * 200)}},
            streamed,
        ),
        "ingest_plan of what an earlier version stored": Call(
            STREAMS,
            {
                **{"after": -1, "records": 0, "size": 0, "slice_records": 50_000, "slice_size": 32 << 20},
            },
            {K.ingested("a"): {"last": str(LARGE)}},
            earlier,
        ),
        "ingest_ack": Call(
            STREAMS,
            {"to": GATEWAY * 200},
            {K.ingested("a"): {"last": str(GATEWAY * 200)}},
            streamed,
        ),
    }


def earlier(client: Any) -> None:
    """Entries of one event and 4 MiB each, without their sizes."""
    for n in range(1, LARGE + 1):
        client.xadd(K.ingest("a"), {"n": 1, "e": b"x" * (4 << 20)}, id=f"{n}-{n * (4 << 20)}")


def streamed(client: Any) -> None:
    """Entries of 200 events and 64 KiB each."""
    batch = client.pipeline(transaction=False)
    for n in range(1, GATEWAY + 1):
        batch.xadd(K.ingest("a"), {"n": 200, "e": b"x" * 65_536}, id=f"{n * 200}-{n * 65_536}")
        batch.xadd(K.ingest_sizes("a"), {"n": 200, "b": 65_536}, id=f"{n * 200}-{n * 65_536}")
        if n % 200 == 0:
            batch.execute()


def ingested(*, pipe: bool = False, lanes: int = 0, signed: bool = False) -> Call:
    """Chunks without a pipe, or each of one lane, or one of many; or the chunks of as many signed requests as a group
    has at most."""
    count = 1 if lanes else b("ingest_add", "chunks") if pipe else 64
    chunk = b"x" * (CHUNK if pipe else 65_536)
    until = int(time.time()) + 360
    each = GROUP_CHUNKS // count
    marks = [[(f"{k}{m}-{n:018}", until) for n in range(each) for k in "si"] for m in range(count)] if signed else []
    moves = [[[f"lane-{n}", "", "state"]] for n in range(count)] if pipe else []
    if lanes:
        moves = [[[f"lane-{n}", "", "state"] for n in range(lanes)]]
    return Call(
        {
            **{**STREAMS, "group": K.ingest_group("a", "g")},
            **{"index": K.ingest_index("a"), "lanes": K.ingest_lanes("a"), "seen": K.ingest_seen("a")},
        },
        {
            **{"group": 1, "ttl": 5, "records": 10**9, "size": 10**12, "journal": "", "known": 0},
            **{"counts": [1] * count, "moves": moves, "most": 10**6, "forget": 60},
            **{
                "marks": marks,
                "remember": 10**6,
                "keep": 720,
                "replay": "s",
                "unsettled": 0,
                "chunks": [chunk] * count,
            },
        },
        {},
    )
