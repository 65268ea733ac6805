"""One call of a script with as much as its header lets it take, and what calls are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from conduit_tasks.broker.keys import Keys
from conduit_tasks.redis_client.script import Script
from conduit_tasks.verify.scripts import scripts

K = Keys("longest")
TOKEN = 7
PARTS = 5_000
"""Slices of a source in a micro-batch (`micro_batch.plan.SLICES`)."""


@dataclass(frozen=True)
class Call:
    """One call of a script; `fields`: hashes that are there before, `prepare`: makes what else is."""

    keys: Mapping[str, str | Sequence[str]]
    args: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, str]]
    prepare: Callable[[Any], None] = lambda client: None


def load(name: str) -> Script:
    """Returns a script by its name."""
    return next(script for _, _, script in scripts() if script.name == name)


def b(name: str, parameter: str) -> int:
    """How many items a list takes."""
    script = load(name)
    return next(p.most or 1 for p in (*script.keys, *script.args) if p.name == parameter)


LEASE = {"token": str(TOKEN), "owner": "me", "ttl": "1000000000", "until": "9000000000000000"}
BASE = {
    K.pipeline: {"status": "running", "last": "1", "sealed": "1"},
    K.lease("destinations.x"): LEASE,
    K.lease("sources.a"): LEASE,
    K.lease("seal"): LEASE,
    K.lease("acks.a"): LEASE,
    K.lease("redrive"): LEASE,
    K.destination("x"): {"cursor": "0", "status": "running", "epoch": "0"},
    K.micro_batch(1): {"state": "sealed", "total": "100000000", "matched": "{}"},
}
OF_X = {
    "pipeline": K.pipeline,
    "destination": K.destination("x"),
    "lease": K.lease("destinations.x"),
    "dead": K.dead("x"),
    "redrive": K.redrive("x"),
}


def apart(count: int, first: int = 0, step: int = 4) -> str:
    """So many ranges that never touch."""
    return ",".join(f"{n}-{n + 1}" for n in range(first, first + step * count, step))


def entries(count: int) -> list[str]:
    """Dead letters as the index has them: `count` texts."""
    return [text for n in range(count // 2) for text in (f"0-1-{n}-0", "1700000000000:1:http 400")]


def claimed(count: int) -> dict[str, str]:
    return {"token": str(TOKEN), "nonce": "n", "epoch": "1", "by": "me", "step": "0"} | {
        f"0-1-{n}-0": "claimed" for n in range(count)
    }


def named(count: int) -> dict[str, str]:
    """Files and their tokens."""
    return {f"/data/flights/2013/01/flights-{n:06d}.csv": f'{{"bytes":{n},"n":12}}' for n in range(count)}


def flat(fields: Mapping[str, str]) -> list[str]:
    return [text for pair in fields.items() for text in pair]


def slices(count: int) -> str:
    return orjson.dumps(
        [
            {"part": name, "partition": "", "start": None, "end": {"bytes": n, "n": 1}, "records": 10, "bytes": 1000}
            for n, name in enumerate(named(count))
        ]
    ).decode()
