"""A pipeline as a whole: stopped, registered, rebuilt, changed; and what pipelines share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from benchmarks.calls.parts import (
    LEASE,
    Call,
    K,
    b,
    flat,
    named,
)


def cases() -> dict[str, Call]:
    """See `benchmarks.calls`."""
    return {
        "glance": Call(
            {
                **{"pipeline": K.pipeline, "series": K.series(""), "dead": K.dead("")},
                "each": [K.lease(f"destinations.d{n}") for n in range(b("glance", "each"))],
            },
            {"destinations": 1_000},
            {},
        ),
        "figures": Call(
            {
                **{"pipeline": K.pipeline, "dead": K.dead("")},
                "each": [K.destination(f"d{n}") for n in range(b("figures", "each"))],
            },
            {"destinations": 1_300},
            {},
        ),
        "stopped": Call(
            {"pipeline": K.pipeline, "each": [K.destination(f"d{n}") for n in range(b("stopped", "each"))]},
            {"count": b("stopped", "each")},
            {
                K.pipeline: {"status": "stopping", "sealed": "5"},
                **{K.destination(f"d{n}"): {"cursor": "5"} for n in range(b("stopped", "each"))},
            },
        ),
        "register": Call(
            {
                **{"pipeline": K.pipeline, "sources": K.sources, "destinations": K.destinations},
                "each": [K.destination(f"d{n}") for n in range(b("register", "ids") // 2)]
                + [K.ack(f"s{n}") for n in range(b("register", "ids") // 2)],
            },
            {
                **{"count": b("register", "ids") // 2, "expect": "1 1 0", "joined": "{}"},
                "ids": [f"d{n}" for n in range(b("register", "ids") // 2)]
                + [f"s{n}" for n in range(b("register", "ids") // 2)],
            },
            {},
        ),
        "start": Call(
            {"scope": K.pipeline, "each": [K.lease(f"n{n}") for n in range(b("start", "each"))]},
            {"windows": 0, "leases": b("start", "each")},
            {
                K.pipeline: {"status": "stopped"},
                **{K.lease(f"n{n}"): LEASE | {"failures": "1"} for n in range(b("start", "each"))},
            },
        ),
        "rebuild_begin": Call(
            {"pipeline": K.pipeline, "leases": [K.lease(f"n{n}") for n in range(b("rebuild_begin", "leases"))]},
            {"nonce": "n", "replace": 1},
            {K.lease(f"n{n}"): LEASE | {"failures": "1"} for n in range(b("rebuild_begin", "leases"))},
        ),
        "rebuild_write": rebuilt("rebuild_write", {"remove": 0}, {}),
        "rebuild_write remove": Call(
            {"pipeline": K.pipeline, "each": [K.micro_batch(m) for m in range(b("rebuild_write", "each"))]},
            {"nonce": "n", "remove": b("rebuild_write", "each"), "rest": []},
            {
                K.pipeline: {"rebuilding": "n"},
                **{K.micro_batch(m): {f"f{n}": "v" * 20 for n in range(15)} for m in range(b("rebuild_write", "each"))},
            },
        ),
        "rebuild": rebuilt("rebuild", {"version": 1, "sealed": 1, "collected": 0, "held": 0}, {"schema": K.schema}),
        "adopt": Call(
            {"version": K.version, "left": K.left},
            {"digest": "d", "topology": {}, "destinations": [f"d{n}" for n in range(1_000)], "by": "me"},
            {
                K.version: {
                    "digest": "e",
                    "destinations": orjson.dumps([f"e{n}" for n in range(b("adopt", "destinations"))]).decode(),
                }
            },
        ),
        "forget": Call(
            {
                "destinations": K.destinations,
                "left": K.left,
                "each": [K.run("x", f"r{n}") for n in range(b("forget", "each"))],
            },
            {"id": "x"},
            {K.run("x", f"r{n}"): {str(m): "0-1" for m in range(20)} for n in range(b("forget", "each"))},
        ),
        "not_ahead": Call(
            {"each": [K.micro_batch(m) for m in range(b("not_ahead", "each"))]},
            {"names": ["sealed_at", ""] * b("not_ahead", "each")},
            {K.micro_batch(m): {"sealed_at": "9" * 16} for m in range(b("not_ahead", "each"))},
        ),
        "remember": Call(
            {"runs": K.runs("x"), "run": K.run("x", "r")},
            {"id": "r", "retention": 60_000, "rest": flat(named(b("remember", "rest") // 2))},
            {},
        ),
        "renaming": renamed("renaming", {}, {}),
        "rename": renamed(
            "rename",
            {"version": K.version, "destinations": K.destinations, "left": K.left, "lease": K.lease("destinations.x")},
            {"old": "x", "new": "z", "last": 1},
        ),
        "matched": Call(
            {"each": [K.micro_batch(m) for m in range(2, 2 + b("matched", "each"))]},
            {"old": "x", "new": "z"},
            {K.micro_batch(m): {"matched": '{"x":5,"y":6}'} for m in range(2, 2 + b("matched", "each"))},
        ),
        "dedupe": Call(
            {"claims": [f"{K.prefix}claim:{n}" for n in range(b("dedupe", "claims"))]},
            {"ttl": 1000, "ids": [str(n) for n in range(b("dedupe", "claims"))]},
            {},
        ),
        "schema_register": Call(
            {name: f"{K.prefix}{name}" for name in ("ids", "schemas", "versions", "places")},
            {"fingerprint": "f", "schema": "{}", "wanted": 1},
            # Of an earlier version: their places are noted in portions.
            {K.prefix + "versions": {str(n): str(n) for n in range(1, 5_001)}},
        ),
        "share": shared("share", {"busy": []}),
        "shared": shared("shared", {}),
    }


def rebuilt(name: str, args: Mapping[str, Any], keys: Mapping[str, str]) -> Call:
    hashes = b(name, "each")
    hashes = min(hashes, b(name, "rest") // 3)
    pairs = max(1, (b(name, "rest") // hashes - 1) // 2)
    return Call(
        {"pipeline": K.pipeline, **keys, "each": [K.planned(f"s{n}") for n in range(hashes)]},
        {
            "nonce": "n",
            **args,
            "rest": [t for _ in range(hashes) for t in (str(2 * pairs), *flat(named(pairs)))],
        },
        {K.pipeline: {"rebuilding": "n"}},
    )


def renamed(name: str, more: Mapping[str, str], args: Mapping[str, Any]) -> Call:
    pairs = b(name, "each") // 2
    return Call(
        {
            **{"pipeline": K.pipeline, "from": K.destination("x"), "to": K.destination("z"), **more},
            "each": [K.run(id, f"r{n}") for n in range(pairs) for id in ("x", "z")],
        },
        args,
        {
            K.pipeline: {"status": "stopped", "last": "1"},
            **{K.run("x", f"r{n}"): {"1": "0-5"} for n in range(pairs)},
        },
    )


def shared(name: str, args: Mapping[str, Any]) -> Call:
    count = b(name, "parts")
    return Call(
        {"topics": [f"{K.prefix}topic:t{n}" for n in range(20)]},
        {
            **{"member": "me", "ttl": 1_000_000, **args},
            "parts": [f"t{n}:{p}" for n in range(20) for p in range(count // 20)],
        },
        {},
    )
