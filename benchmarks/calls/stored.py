"""Scripts whose hashes have no bound, with any number of fields in them: what a call takes does not go by that."""

from __future__ import annotations

from benchmarks.calls.parts import OF_X, TOKEN, Call, K, b

MUCH = 100_000
_SUBJECT = {name: f"{K.prefix}{name}" for name in ("ids", "schemas", "versions", "places")}


def stored(count: int, *, whole: bool = False) -> dict[str, Call]:
    """Name of a script → its call, which finds `count` fields. `whole`: with all it takes, else with one of each."""
    lanes = b("number", "lanes") // 2 if whole else 1
    ranges = b("reopen", "rest") // 2 if whole else 1
    of_x = {name: OF_X[name] for name in ("pipeline", "destination", "lease")}
    ids = {str(n): str(n) for n in range(1, count + 1)}
    return {
        "number": Call(
            of_x | {"numbers": K.numbers("x")},
            {
                **{"m": 2, "seal": 1, "stream": 0, "token": TOKEN, "known": count, "over": 1},
                "lanes": [text for n in range(lanes) for text in (f"lane-{n}", "5")],
            },
            {K.numbers("x"): {"stream": "0", "epoch": "1", **{f"lane:lane-{n}": "1 0 5" for n in range(count)}}},
        ),
        "schema_register": Call(
            _SUBJECT,
            {"fingerprint": "f", "schema": "{}", "wanted": count + 1},
            {_SUBJECT["versions"]: ids, _SUBJECT["places"]: {"": str(count), **ids}},
        ),
        "reopen": Call(
            of_x | {"redo": K.redo("x")},
            {"token": TOKEN, "id": "r", "over": 0, "rest": [t for m in range(ranges) for t in (str(m), "0-499999")]},
            {K.redo("x"): {"epoch": "1", "run": "r", "at": "1", "filling": "1", **dict.fromkeys(ids, "0-499999")}},
        ),
    }
