"""What is delivered: confirmed, voted on, its dead letters, redrives and replays."""

from __future__ import annotations

from typing import Any

from benchmarks.calls.parts import (
    BASE,
    OF_X,
    TOKEN,
    Call,
    K,
    apart,
    b,
    claimed,
    entries,
)

HELD = 6_000
"""Ranges that a destination has confirmed apart: what is read ahead with 1,024 unconfirmed, and nacks that wait."""
WINDOW = 10_000
"""Outcomes in a nack window, at most."""


def cases() -> dict[str, Call]:
    """See `benchmarks.calls`."""
    letter_count = b("confirm", "letters")
    closed = {f"0-1-{n}-0": "redriven" for n in range(b("confirm", "closed"))}
    parks = {f"key-{n}": f"1-{n}-0" for n in range(b("confirm", "park"))}
    per_call = b("confirm", "ranges")
    token: dict[str, Any] = {"token": TOKEN}
    in_index = {K.dead("x"): {f"0-1-{n}-0": "1700000000000:1:http 400" for n in range(10_000)}}
    runs = ",".join("a1,n1" for _ in range(WINDOW // 2))
    return {
        "confirm one range of many": confirm("3-3", apart(HELD)),
        "confirm as many as there are": confirm(apart(per_call, 2, 8), apart(HELD)),
        "confirm letters": confirm(
            apart(per_call, 2, 8), apart(HELD), letter_count, closed=closed, park=parks, epoch=0
        ),
        "confirm_shard": Call(
            {
                **{name: OF_X[name] for name in ("pipeline", "destination", "lease", "dead")},
                **{"run": K.run("x", "r"), "figures": K.figures, "series": K.series("x")},
            },
            {
                **{"m": 2, "shard": 1, "ranges": apart(b("confirm_shard", "ranges"), 2, 8), "total": 10_000_000},
                **{"remember": 1_000, "counts": {"matched": 1}, "observed": {}, "sampled": {}},
                **token,
                "letters": entries(b("confirm_shard", "letters")),
            },
            {
                K.destination("x"): BASE[K.destination("x")]
                | {"cursor": "1", "divided": "2:key:2:1000000", "shard:1": apart(HELD)}
            },
        ),
        "together": Call(
            {
                **{name: OF_X[name] for name in ("pipeline", "destination", "lease")},
                **{"window": K.window("x"), "series": K.series("x")},
                "each": [K.micro_batch(n + 1) for n in range(b("together", "each"))],
            },
            # Nothing but the first one has records, so that each of the others is whole at once.
            {"m": 1, "lanes": 64, "shares": ["100:0:1", *["0:1:0"] * (b("together", "shares") - 1)], **token},
            {
                K.micro_batch(n + 1): {"state": "sealed", "total": "1", "bytes": "1"}
                for n in range(b("together", "each"))
            },
        ),
        "whole of a group": Call(
            {
                **{name: OF_X[name] for name in ("pipeline", "destination", "lease")},
                **{"micro_batch": K.micro_batch(1), "figures": K.figures, "series": K.series("x")},
            },
            {"m": 1, "shard": 0, "records": 0, "completing": {}, **token},
            {K.destination("x"): BASE[K.destination("x")] | {"divided": "1:none:64:64:0:64", **whole_group()}},
        ),
        "vote": Call(
            {
                "pipeline": K.pipeline,
                "lease": K.lease("destinations.x"),
                "window": K.window("x"),
                "scope": [K.destination("x")],
            },
            {
                **{
                    "m": 2,
                    "of": "",
                    "first": 0,
                    "size": WINDOW,
                    "threshold": WINDOW - 1,
                    "stop": "pipeline",
                    "error": {},
                },
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
            {k: OF_X[k] for k in ("pipeline", "destination", "lease")} | {"redo": K.redo("x")},
            {
                **{"id": "r", "over": 1, **token},
                "rest": [text for m in range(b("reopen", "rest") // 2) for text in (str(m), "0-499999")],
            },
            {},
        ),
        "turn": Call(
            {"turns": K.turns("x")},
            {"run": "r", "from": 1, "ttl": 1000, "take": 1},
            {K.turns("x"): {f"run-{n}": "5 9000000000000000 0" for n in range(1_000)}},
        ),
        "number": Call(
            {k: OF_X[k] for k in ("pipeline", "destination", "lease")} | {"numbers": K.numbers("x")},
            {
                **{"m": 2, "seal": 1, "stream": 0, "known": 1, "over": 1, **token},
                "lanes": [text for n in range(b("number", "lanes") // 2) for text in (f"lane-{n}", "5")],
            },
            {},
        ),
    }


def whole_group() -> dict[str, str]:
    """A group of which only the first shard is not whole."""
    group = range(2, b("together", "each") + 1)
    return {
        "group": f"1-{group[-1]}",
        **{f"shard:{lane}": "=1" if lane > 1 else "=2" for lane in range(1, 64)},
        **{f"divided:{m}": f"{m}:none:64:64:0:64" for m in group},
        **{f"shard:{m}:{lane}": "=1" for m in group for lane in range(64)},
    }


def confirm(ranges: str, have: str, letters: int = 0, **more: Any) -> Call:
    keys = OF_X | {
        "micro_batch": K.micro_batch(1),
        "run": K.run("x", "r"),
        "redo": K.redo("x"),
        "parked": K.parked("x"),
        "figures": K.figures,
        "series": K.series("x"),
    }
    args: dict[str, Any] = {"m": 1, "token": TOKEN, "epoch": 0, "ranges": ranges, "state": "", "remember": 1000}
    args |= {
        "counts": {"matched": 1},
        "observed": {},
        "completing": {},
        "sampled": {},
        "park": {},
        "closed": {},
        "by": "run r",
    }
    return Call(
        keys,
        args | {"letters": entries(letters)} | more,
        {K.destination("x"): BASE[K.destination("x")] | {"ranges": have}, K.run("x", "r"): {"1": have}},
    )


def some_letters(count: int) -> list[str]:
    return [f"0-1-{n}-0" for n in range(count)]
