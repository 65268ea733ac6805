"""`scripts`: how long Redis serves nobody else: every broker script with as much as its header lets it take.

A script that has no list and no loop takes what any command takes and has no case. `CASES` is for tests, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.place import Place, serving
from benchmarks.tables import Figure, Result
from conduit_tasks.broker.keys import Keys
from conduit_tasks.broker.scripts import load
from conduit_tasks.gateway.pipe import LANES

K = Keys("longest")
TOKEN = 7
LIMIT = 50.0
"""Milliseconds."""
HELD = 6_000
"""Ranges that a destination has confirmed apart: what is read ahead with 1,024 unconfirmed, and nacks that wait."""


@dataclass(frozen=True)
class Call:
    """One call of a script; `fields`: hashes that are there before, `prepare`: makes what else is."""

    keys: Mapping[str, str | Sequence[str]]
    args: Mapping[str, Any]
    fields: Mapping[str, Mapping[str, str]]
    prepare: Callable[[Any], None] = lambda client: None


def most(name: str, parameter: str) -> int:
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


def confirm(ranges: str, have: str, letters: int = 0, **more: Any) -> Call:
    keys = OF_X | {
        "micro_batch": K.micro_batch(1),
        "run": K.run("x", "r"),
        "redo": K.redo("x"),
        "parked": K.parked("x"),
        "figures": K.figures,
    }
    args: dict[str, Any] = {"m": 1, "token": TOKEN, "epoch": 0, "ranges": ranges, "state": "", "remember": 1000}
    args |= {"counts": {"matched": 1}, "observed": {}, "completing": {}, "park": {}, "closed": {}, "by": "run r"}
    return Call(
        keys,
        args | {"letters": entries(letters)} | more,
        {K.destination("x"): BASE[K.destination("x")] | {"ranges": have}, K.run("x", "r"): {"1": have}},
    )


def b(name: str, parameter: str) -> int:
    return most(name, parameter)


def cases() -> dict[str, Call]:
    """Name of a script, and of what it is to do after a blank → the call."""
    letter_count = b("confirm", "letters")
    closed = {f"0-1-{n}-0": "redriven" for n in range(b("confirm", "closed"))}
    parks = {f"key-{n}": f"1-{n}-0" for n in range(b("confirm", "park"))}
    per_call = b("confirm", "ranges")
    token: dict[str, Any] = {"token": TOKEN}
    sources = [f"s{n}" for n in range(1_000)]
    files = named(PARTS)
    in_index = {K.dead("x"): {f"0-1-{n}-0": "1700000000000:1:http 400" for n in range(10_000)}}
    runs = ",".join("a1,n1" for _ in range(WINDOW // 2))
    big = {
        "confirm one range of many": confirm("3-3", apart(HELD)),
        "confirm as many as there are": confirm(apart(per_call, 2, 8), apart(HELD)),
        "confirm letters": confirm(
            apart(per_call, 2, 8), apart(HELD), letter_count, closed=closed, park=parks, epoch=0
        ),
        "vote": Call(
            {
                "pipeline": K.pipeline,
                "lease": K.lease("destinations.x"),
                "window": K.window("x"),
                "scope": [K.destination("x")],
            },
            {
                **{"m": 2, "first": 0, "size": WINDOW, "threshold": WINDOW - 1, "stop": "pipeline", "error": {}},
                **token,
                "votes": ",".join("a1" if n % 2 else "n1" for n in range(b("vote", "votes"))),
            },
            {K.window("x"): {"m": "1", "next": "1", "outcomes": runs}},
        ),
        "letters": Call(
            {**{k: OF_X[k] for k in ("lease", "dead", "redrive")}, "parked": K.parked("x")},
            {
                **token,
                "epoch": 1,
                "by": "run r",
                "closed": closed,
                "park": parks,
                "letters": entries(b("letters", "letters")),
            },
            in_index,
        ),
        "settle": Call(
            {**OF_X, "parked": K.parked("x")},
            {
                **token,
                "step": 1,
                "state": "",
                "counts": {},
                "settled": {f"0-1-{n}-0": "redriven" for n in range(b("settle", "settled"))},
                "through": {f"key-{n}": f"1-{n}-0" for n in range(b("settle", "through"))},
                "park": {f"park-{n}": f"1-{n}-0" for n in range(b("settle", "park"))},
                "letters": entries(b("settle", "letters")),
            },
            in_index | {K.redrive("x"): claimed(b("settle", "settled"))},
        ),
        "dispatch": Call(
            {
                **OF_X,
                "lease": K.lease("redrive"),
                "targets": [K.dead(f"y{n}") for n in range(b("dispatch", "targets"))],
            },
            {
                **token,
                "step": 1,
                "settled": {f"0-1-{n}-0": "redriven" for n in range(b("dispatch", "settled"))},
                "letters": [
                    text
                    for n in range(b("dispatch", "letters") // 3)
                    for text in (str(n % 50), f"0-1-{n}-0", "1700000000000:1:http 400")
                ],
            },
            in_index | {K.redrive("x"): claimed(b("dispatch", "settled"))},
        ),
        "claim": Call(
            OF_X, {**token, "nonce": "n2", "by": "me", "letters": some_letters(b("claim", "letters"))}, in_index
        ),
        "mark": Call(
            {"lease": OF_X["lease"], "redrive": OF_X["redrive"]},
            {**token, "back": 1, "letters": some_letters(b("mark", "letters"))},
            {K.redrive("x"): claimed(10_000)},
        ),
        "purge": Call(
            {k: OF_X[k] for k in ("lease", "dead", "redrive")},
            {"letters": some_letters(b("purge", "letters"))},
            in_index,
        ),
        "index": Call(
            {"pipeline": K.pipeline, "micro_batch": K.micro_batch(2), "lease": K.lease("seal"), "dead": K.dead("")},
            {**token, "letters": entries(b("index", "letters"))},
            {K.micro_batch(2): {"state": "open"}},
        ),
        "unindex": Call(
            {"micro_batch": K.micro_batch(2), "dead": K.dead("x")},
            {**token, "over": 1, "letters": some_letters(b("unindex", "letters"))},
            in_index | {K.micro_batch(2): {"state": "open", "indexing": str(TOKEN)}},
        ),
        "replay_confirm": Call(
            {**OF_X, "replay": K.replay("x", "r")},
            {
                **token,
                "portion": 1,
                "ranges": apart(b("replay_confirm", "ranges"), 2, 8),
                "state": "",
                "counts": {},
                "settled": {f"0-1-{n}-0": "redriven" for n in range(b("replay_confirm", "settled"))},
                "letters": entries(b("replay_confirm", "letters")),
            },
            in_index
            | {K.redrive("x"): claimed(b("replay_confirm", "settled")), K.replay("x", "r"): {"1": apart(HELD)}},
        ),
        "replay_end": Call(
            {k: OF_X[k] for k in ("pipeline", "destination", "lease")} | {"replay": K.replay("x", "r")},
            {**token, "covered": "3-3"},
            {K.destination("x"): {**BASE[K.destination("x")], "replayed": apart(HELD)}},
        ),
        "reopen": Call(
            {k: OF_X[k] for k in ("pipeline", "destination", "lease")} | {"run": K.run("x", "r"), "redo": K.redo("x")},
            {**token, "id": "r"},
            {K.run("x", "r"): {str(m): "0-499999" for m in range(2_000)}},
        ),
        "turn": Call(
            {"turns": K.turns("x")},
            {"run": "r", "from": 1, "ttl": 1000, "take": 1},
            {K.turns("x"): {f"run-{n}": "5 9000000000000000 0" for n in range(1_000)}},
        ),
        "number": Call(
            {k: OF_X[k] for k in ("pipeline", "destination", "lease")} | {"numbers": K.numbers("x")},
            {
                **{"m": 2, "seal": 1, "stream": 0, **token},
                "counts": {f"lane-{n}": 5 for n in range(b("number", "counts"))},
            },
            {},
        ),
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
        "rebuild": rebuilt("rebuild", {"version": 1, "sealed": 1, "collected": 0}, {"schema": K.schema}),
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
        "rename": renamed(),
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
            {"ids": K.prefix + "ids", "schemas": K.prefix + "schemas", "versions": K.prefix + "versions"},
            {"fingerprint": "f", "schema": "{}"},
            {K.prefix + "versions": {str(n): str(n) for n in range(1, 5_001)}},
        ),
        "share": shared("share", {"busy": []}),
        "shared": shared("shared", {}),
        "ingest_add": ingested(),
        "ingest_add one by one": ingested(pipe=True),
        "ingest_add many lanes": ingested(lanes=LANES),
        "ingest_restore": Call(
            {"stream": K.ingest("a"), "state": K.ingested("a")},
            {
                "journal": "",
                "ids": [f"{n}-{n * CHUNK}" for n in range(1, 1 + b("ingest_restore", "chunks"))],
                "counts": [1] * b("ingest_restore", "chunks"),
                "chunks": [b"x" * CHUNK] * b("ingest_restore", "chunks"),
            },
            {},
        ),
        "ingest_plan": Call(
            {"stream": K.ingest("a"), "state": K.ingested("a")},
            {
                **{"after": -1, "records": 0, "size": 0, "slice_records": 2_000, "slice_size": 1 << 40},
            },
            {K.ingested("a"): {"last": str(GATEWAY * 200)}},
            streamed,
        ),
        "ingest_ack": Call(
            {"stream": K.ingest("a"), "state": K.ingested("a")},
            {"to": GATEWAY * 200},
            {K.ingested("a"): {"last": str(GATEWAY * 200)}},
            streamed,
        ),
    }
    return big


PARTS = 5_000
"""Slices of a source in a micro-batch (`micro_batch.plan.SLICES`)."""
WINDOW = 10_000
"""Outcomes in a nack window, at most."""
CHUNK = 800
GATEWAY = 4_000
"""Entries of 64 KiB that a gateway source holds here."""


def streamed(client: Any) -> None:
    """Entries of 200 events and 64 KiB each."""
    batch = client.pipeline(transaction=False)
    for n in range(1, GATEWAY + 1):
        batch.xadd(K.ingest("a"), {"n": 200, "e": b"x" * 65_536}, id=f"{n * 200}-{n * 65_536}")
        if n % 200 == 0:
            batch.execute()


def some_letters(count: int) -> list[str]:
    return [f"0-1-{n}-0" for n in range(count)]


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
            **{"pipeline": K.pipeline, "micro_batch": K.micro_batch(2)},
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


def renamed() -> Call:
    return Call(
        {
            **{"pipeline": K.pipeline, "version": K.version, "destinations": K.destinations, "left": K.left},
            **{"from": K.destination("x"), "to": K.destination("z")},
            "each": [K.run(name, f"r{n}") for n in range(b("rename", "each") // 2) for name in ("x", "z")],
        },
        {"old": "x", "new": "z", "pairs": b("rename", "each") // 2, "last": 1},
        {
            K.pipeline: {"status": "stopped", "last": "1"},
            **{K.run("x", f"r{n}"): {"1": "0-5"} for n in range(b("rename", "each") // 2)},
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


def ingested(*, pipe: bool = False, lanes: int = 0) -> Call:
    """Chunks without a pipe, or each of one lane, or one of many."""
    count = 1 if lanes else b("ingest_add", "chunks") if pipe else 64
    chunk = b"x" * (CHUNK if pipe else 65_536)
    moves = [[[f"lane-{n}", "", "state"]] for n in range(count)] if pipe else []
    if lanes:
        moves = [[[f"lane-{n}", "", "state"] for n in range(lanes)]]
    return Call(
        {
            **{"stream": K.ingest("a"), "state": K.ingested("a"), "group": K.ingest_group("a", "g")},
            **{"index": K.ingest_index("a"), "lanes": K.ingest_lanes("a")},
        },
        {
            **{"group": 1, "ttl": 5, "records": 10**9, "size": 10**12, "journal": "", "known": 0},
            **{"counts": [1] * count, "moves": moves, "most": 10**6, "forget": 60, "chunks": [chunk] * count},
        },
        {},
    )


def prepare(client: Any, call: Call) -> None:
    """An empty Redis with what the call finds there."""
    client.flushall()
    batch = client.pipeline(transaction=False)
    for key, fields in {**BASE, **call.fields}.items():
        batch.hset(key, mapping=fields)
    batch.execute()
    call.prepare(client)


def once(client: Any, name: str, call: Call) -> list[Any]:
    """Runs it. Raises where it did not do it."""
    answer = load(name.partition(" ")[0])(client, call.keys, **call.args)
    if answer and answer[0] in ("broken", "fenced", "stopped", "held", "busy", "gone", "taken", "moved"):
        raise RuntimeError(f"{name}: {answer}")
    return answer


def spent(client: Any) -> float:
    """CPU milliseconds of the thread that serves."""
    info = client.info("cpu")
    return float(info["used_cpu_sys_main_thread"] + info["used_cpu_user_main_thread"]) * 1e3


def run(place: Place, rounds: int) -> Result:
    """`rounds` of each; of the longest the least, as what else the machine does only adds to it."""
    place.pipeline()
    with serving(place) as (_, client, _):
        client.config_set("slowlog-log-slower-than", 0)
        took: dict[str, list[float]] = {}
        cpu: dict[str, list[float]] = {}
        for _ in range(rounds):
            for name, call in cases().items():
                prepare(client, call)
                client.slowlog_reset()
                before = spent(client)
                once(client, name, call)
                cpu.setdefault(name, []).append(spent(client) - before)
                found = [e["duration"] for e in client.slowlog_get(20) if e["command"][:4] in (b"EVAL", "EVAL")]
                took.setdefault(name, []).append(max(found) / 1e3)
    least = {name: min(of) for name, of in took.items()}
    rows = [
        [name, least[name], max(of), min(cpu[name])] for name, of in sorted(took.items(), key=lambda x: -least[x[0]])
    ]
    longest = max(least, key=lambda n: least[n])
    return Result(
        f"scripts: milliseconds that Redis is at one script with all it takes, {rounds} rounds",
        ("script", "least", "most", "CPU"),
        rows,
        [Figure(f"the longest ({longest})", least[longest], "≤", LIMIT, " ms")],
        [
            "By Redis' own SLOWLOG, and the CPU time of its thread, which reads the command, too. A script without "
            "a list or a loop takes what a few commands take."
        ],
        {"scripts": float(len({name.partition(" ")[0] for name in took})), "longest": least[longest]},
    )
