"""Calls about issues: as many as are kept, with messages as long as they may be."""

from __future__ import annotations

from typing import Any

import orjson

from benchmarks.calls.parts import Call, K, b

KEPT = 200
"""Issues of failed tasks that `failed.lua` keeps."""


def cases() -> dict[str, Call]:
    """Name of a script → the call."""
    return {
        "failed": Call(
            {"failing": K.failing},
            {"issue": "new", "attempt": "p/r/t/-1/1", "said": said(KEPT)},
            {
                K.failing: {
                    **{f"{n:012x}": kept(n) for n in range(KEPT)},
                    **{f"ok:destinations.d{n}": "0" for n in range(KEPT)},
                }
            },
        ),
        "looked": Call(
            {"announced": K.announced},
            {"mark": "m", "gone": [f"{n:012x}|0:a.b.C" for n in range(b("looked", "gone"))]},
            {K.announced: {f"{n:012x}|0:a.b.C": "0" for n in range(b("looked", "gone"))}},
        ),
    }


def said(n: int) -> dict[str, Any]:
    """What is said of a failed attempt."""
    node = f"destinations.d{n}"
    log = {"dag": "p", "run": "scheduled__2026-01-01T00:00:00", "task": node, "map_index": -1, "try": 1}
    words = {"node": node, "by": node, "error_class": "SourceError", "shape": "x" * 300, "error": "x" * 1_000}
    return {**words, "log": log}


def kept(n: int) -> str:
    """An issue as it is stored."""
    at = str(1_700_000_000_000_000 + n)
    days = {str(day): 1 for day in range(20_000, 20_014)}
    of = {"said": said(n), "attempt": "a", "first": at, "last": at, "since": at, "count": 14, "days": days}
    return f"{at}|destinations.d{n}|{orjson.dumps(of).decode()}"
