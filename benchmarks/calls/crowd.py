"""What a pipeline may hold beside what a call takes: very much of everything that has no bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.calls.parts import Call, K, apart

_AT_ONCE = 2_000
_FAR = 50_000_000
"""First seq of the ranges that are there already: behind those of any call, within the micro-batch."""
_LETTERS = {K.dead("x"), K.dead(""), K.redrive("x")}
_FEW = 2
"""Keys of a list that hold much."""
_CLAIM = ("token", "nonce", "epoch", "by", "step")
"""Fields of a redrive that are no letters."""


@dataclass(frozen=True)
class Stored:
    """How much there is of each."""

    lanes: int = 100_000
    parts: int = 100_000
    runs: int = 4_000
    batches: int = 45_000
    letters: int = 600_000
    ranges: int = 400_000

    def part(self, of: int) -> Stored:
        """Returns one `of`-th of everything."""
        return Stored(*(max(1, n // of) for n in self._all()))

    def _all(self) -> tuple[int, ...]:
        return self.lanes, self.parts, self.runs, self.batches, self.letters, self.ranges

    def __str__(self) -> str:
        names = ("lanes and keys", "files", "runs", "micro-batches", "dead letters", "ranges of one micro-batch")
        return ", ".join(f"{n:,} {name}" for n, name in zip(self._all(), names))


class Crowd:
    """Full hashes of each kind on a server. Most are copied to where a call finds them; those of letters, the largest,
    stay there, and what a call leaves in them is taken out again."""

    def __init__(self, client: Any, of: Stored) -> None:
        self._client, self._of = client, of
        self._ranges = apart(of.ranges, _FAR)
        self._made = {kind: self._make(kind, pairs) for kind, pairs in self._hashes().items()}
        self._last: Call | None = None
        # Keys of their own: what goes through all keys meets them.
        self._fill({K.micro_batch(_FAR + n): {"state": "sealed", "total": "5"} for n in range(of.batches)})
        self._fill({K.run("other", f"r{n}"): {"1": "0-4"} for n in range(of.runs)})

    def _hashes(self) -> dict[str, Iterable[tuple[str, str]]]:
        """Kind of a key → the fields that it has too many of."""
        of = self._of
        parts = [(f"/data/other/{n:06d}.csv", '{"bytes":5,"n":12}') for n in range(of.parts)]
        ones = [(name, "5") for name, _ in parts]
        batches = [(str(_FAR + n), "0-499999") for n in range(of.batches)]
        letters = [f"0-{_FAR}-{n}-0" for n in range(of.letters)]
        return {
            "numbers": [(f"lane:other-{n}", "1 0 5") for n in range(of.lanes)],
            "parked": [(f"other-{n}", f"1-{n}-0") for n in range(of.lanes)],
            "ingest-index": [(f"other {n}", "state") for n in range(of.lanes)],
            **dict.fromkeys(("planned", "acked"), parts),
            **dict.fromkeys(("index", "gone"), ones),
            **dict.fromkeys(("run", "redo", "replay"), batches),
            "runs": [(f"other-{n}", "5") for n in range(of.runs)],
            "dead": [(letter, "1700000000000:1:http 400") for letter in letters],
            "redrive": [(letter, "claimed") for letter in letters],
        }

    def _make(self, kind: str, pairs: Iterable[tuple[str, str]]) -> str:
        key = f"{K.prefix}crowd:{kind}"
        for some in _portions(list(pairs)):
            self._client.hset(key, mapping=dict(some))
        return key

    def _fill(self, hashes: Mapping[str, Mapping[str, str]]) -> None:
        for some in _portions(list(hashes.items())):
            batch = self._client.pipeline(transaction=False)
            for key, fields in some:
                batch.hset(key, mapping=fields)
            batch.execute()

    def prepare(self, call: Call, base: Mapping[str, Mapping[str, str]]) -> None:
        """Has a Redis hold all of it, and what the call finds there."""
        if self._last is not None:
            self._clear(self._last, base)
        for key in _full(call):
            kind = _kind(key)
            if kind in self._made and not (key in _LETTERS and self._client.hlen(key) >= self._of.letters):
                self._client.copy(self._made[kind], key, replace=True)
            elif kind == "ingest-lanes":
                for some in _portions([(f"other {n}", 2e9) for n in range(self._of.lanes)]):
                    self._client.zadd(key, dict(some))
        self._fill({**base, **self._more(call)})
        call.prepare(self._client)
        self._last = call

    def _clear(self, call: Call, base: Mapping[str, Mapping[str, str]]) -> None:
        keys = {*_keys(call), *call.fields, *base}
        for some in _portions(sorted(keys - _LETTERS)):
            self._client.unlink(*some)
        for key in keys & _LETTERS:
            for some in _portions(sorted({*_CLAIM, *_texts(call.args), *call.fields.get(key, ())})):
                self._client.hdel(key, *some)

    def _more(self, call: Call) -> dict[str, Mapping[str, str]]:
        """Returns the fields that a call finds, with ranges behind those that are there."""
        with_ranges = {K.destination("x"): ("ranges", "replayed"), K.run("x", "r"): ("1",), K.replay("x", "r"): ("1",)}
        return {
            key: {
                name: f"{value},{self._ranges}" if value and name in with_ranges.get(key, ()) else value
                for name, value in fields.items()
            }
            for key, fields in call.fields.items()
        }


def _keys(call: Call) -> set[str]:
    return set(_texts(call.keys))


def _full(call: Call) -> set[str]:
    """Returns the keys that hold much; where a call takes a list of keys, that is its load."""
    return {key for of in call.keys.values() for key in _texts(of if isinstance(of, str) else list(of[:_FEW]))}


def _texts(value: Any) -> Iterator[str]:
    """Yields every text in a value, names of objects as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, of in value.items():
            yield name
            yield from _texts(of)
    elif isinstance(value, list):
        for of in value:
            yield from _texts(of)


def _kind(key: str) -> str:
    return key.removeprefix(K.prefix).partition(":")[0]


def _portions(of: list[Any]) -> Iterator[list[Any]]:
    for at in range(0, len(of), _AT_ONCE):
        yield of[at : at + _AT_ONCE]
