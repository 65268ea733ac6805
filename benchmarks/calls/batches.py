"""The life of a micro-batch: opened, staged, sealed, acked and collected; and positions."""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.calls.parts import (
    PARTS,
    TOKEN,
    Call,
    K,
    b,
    entries,
    flat,
    named,
    slices,
)


def cases() -> dict[str, Call]:
    """See `benchmarks.calls`."""
    token: dict[str, Any] = {"token": TOKEN}
    sources = [f"s{n}" for n in range(1_000)]
    files = named(PARTS)
    return {
        "open": Call(
            {"pipeline": K.pipeline, "micro_batch": K.micro_batch(2), "planned": [K.planned("a")]},
            {
                "expect": 2,
                "config": "c",
                "sources": ["a"],
                "nodes": ["sources.a"],
                "rest": [slices(PARTS), str(PARTS), *flat(files)],
            },
            {},
        ),
        "open many sources": Call(
            {"pipeline": K.pipeline, "micro_batch": K.micro_batch(2), "planned": [K.planned(s) for s in sources]},
            {
                "expect": 2,
                "config": "c",
                "sources": sources,
                "nodes": [f"sources.{s}" for s in sources],
                "rest": [text for _ in sources for text in (slices(8), "8", *flat(named(8)))][: b("open", "rest")],
            },
            {},
        ),
        "stage": staged(),
        "seal": Call(
            {
                "pipeline": K.pipeline,
                "micro_batch": K.micro_batch(2),
                "lease": K.lease("seal"),
                "totals": K.totals,
                "series": K.series(""),
                "dead": K.dead(""),
            },
            {
                **{"m": 2, **token, "manifest": "m", "total": 5, "bytes": 5, "filtered": 0, "nacked": 0},
                "matched": {f"d{n}": 5 for n in range(1_000)},
                "letters": entries(b("seal", "letters")),
            },
            {
                K.micro_batch(2): {
                    "state": "open",
                    "nodes": orjson.dumps([f"sources.{s}" for s in sources]).decode(),
                    **{
                        f"stage:sources.{s}": '{"read":5,"filtered":0,"nacked":0,"counts":[5,5,5,5,5]}' for s in sources
                    },
                }
            },
        ),
        "restage": restaged(),
        "place": Call(
            {"pipeline": K.pipeline, "ack": K.ack("a"), "planned": K.planned("a")},
            {"rest": [t for name, token_ in named(b("place", "rest") // 3).items() for t in (name, token_, "{}")]},
            {K.pipeline: {"status": "stopped", "sealed": "0"}, K.planned("a"): named(b("place", "rest") // 3)},
        ),
        "gone": Call(
            {
                **{"pipeline": K.pipeline, "gone": K.gone("a"), "planned": K.planned("a")},
                **{"acked": K.acked("a"), "index": K.index("a")},
            },
            {"source": "a", "after": 0, "back": 0, "rest": flat(named(b("gone", "rest") // 2))},
            {K.planned("a"): named(b("gone", "rest") // 2), K.acked("a"): named(b("gone", "rest") // 2)},
        ),
        "begin_ack": Call(
            {
                "pipeline": K.pipeline,
                "ack": K.ack("a"),
                "lease": K.lease("acks.a"),
                "intent": K.intent("a"),
                "cursors": [],
            },
            {**token, "from": 1, "to": 1, "position": flat(named(b("begin_ack", "position") // 2))},
            {},
        ),
        "commit_ack": Call(
            {
                "ack": K.ack("a"),
                "lease": K.lease("acks.a"),
                "intent": K.intent("a"),
                "acked": K.acked("a"),
                "figures": K.figures,
            },
            {**token, "from": 1, "to": 1, "observed": {}},
            {K.ack("a"): {"from": "1", "to": "1"}, K.intent("a"): named(b("begin_ack", "position") // 2)},
        ),
        "slim": Call(
            {"pipeline": K.pipeline, "each": [K.micro_batch(m) for m in range(2, 2 + b("slim", "each"))]},
            {"to": 1 + b("slim", "each")},
            {K.micro_batch(m): {"state": "sealed", "slices:a": "x" * 200} for m in range(2, 2 + b("slim", "each"))},
        ),
        "begin_collect": Call(
            {
                "pipeline": K.pipeline,
                "micro_batch": K.micro_batch(1),
                "each": [K.destination(f"d{n}") for n in range(b("begin_collect", "each"))],
            },
            {"m": 1, "count": b("begin_collect", "each")},
            {K.destination(f"d{n}"): {"cursor": "5"} for n in range(b("begin_collect", "each"))},
        ),
    }


def staged() -> Call:
    args: dict[str, Any] = {"token": TOKEN, "node": "sources.a", "source": "a", "manifest": "m", "observed": {}}
    args |= {"stage": {"read": 5, "counts": [5] * PARTS}, "slices": slices(PARTS), "count": PARTS}
    return Call(
        {
            **{"pipeline": K.pipeline, "micro_batch": K.micro_batch(2), "lease": K.lease("sources.a")},
            **{"index": K.index("a"), "planned": K.planned("a"), "figures": K.figures},
        },
        args | {"rest": ["5"] * PARTS + flat(named(PARTS))},
        {K.micro_batch(2): {"state": "open", "nodes": '["sources.a"]', "slices:a": slices(PARTS)}},
    )


def restaged() -> Call:
    return Call(
        {
            **{"pipeline": K.pipeline, "micro_batch": K.micro_batch(2), "totals": K.totals},
            "each": [K.lease("sources.a"), K.index("a"), K.planned("a"), K.destination("x"), K.ack("a")],
        },
        {
            **{"m": 2, "config": "c", "sources": [], "nodes": [], "manifest": "m", "gone": ["a"], "leases": 1},
            **{"deliveries": 1, "rest": ["", str(PARTS), *flat(named(PARTS))]},
        },
        {
            K.pipeline: {"status": "running", "unsealed": "2", "sealed": "1"},
            K.micro_batch(2): {
                **{"state": "open", "nodes": '["sources.a"]', "slices:a": slices(PARTS)},
                "first:sources.a": ",".join("5" for _ in range(PARTS)),
            },
        },
    )
