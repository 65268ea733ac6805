"""Rolling series: what a pipeline and its nodes did lately, in buckets of time.

The scripts that seal and confirm write them in the same step (`sample` in `scripts/_shared.lua`), so that nothing is
counted twice and no command is added. There are buckets of 10 s for two hours and of 5 min for 14 days. A field of the
hash holds the bucket of now, as JSON. Once it is over, it is written to the fields that hold the buckets of a stretch
of time each, as text. They are taken for a later stretch again: the size has a bound. Series are for the eye and for
alerts (`airflow.alert_rules`). No delivery depends on them, and `rebuild` does not bring them back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from conduit_tasks.metrics.histogram import LATENCY, NAMES
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.access import Access


@dataclass(frozen=True)
class Width:
    """Buckets of one width. `seconds` of a bucket; `buckets` of a stretch, which is one field; `stretches` that are
    kept, the one under way included."""

    seconds: int
    buckets: int
    stretches: int

    @property
    def span(self) -> int:
        """Seconds back from now that are always there."""
        return self.seconds * self.buckets * (self.stretches - 1)


FINE, COARSE = Width(10, 60, 13), Width(300, 48, 85)
"""Two hours and fourteen days; as `WIDTHS` in `scripts/_shared.lua`."""

LETTERS = {
    "read": "r",
    "micro_batches": "m",
    "bytes": "b",
    "confirmed": "p",
    "delivered": "d",
    "filtered": "f",
    "nacked": "x",
    "completed": "c",
    "parked": "k",
    "retried": "t",
    "redelivered": "g",
}
"""Figure → letter in a bucket. `bytes`: of micro-batches sealed, or confirmed whole; `confirmed`: records, whether the
trigger wanted them or not."""
_OF_BOUND = {name: chr(ord("A") + n) for n, name in enumerate(NAMES)}
_FIGURES = {
    **{letter: name for name, letter in LETTERS.items()},
    **{letter: f"{LATENCY}|{name}" for name, letter in _OF_BOUND.items()},
}

Bucket = dict[str, int]
"""Figure → sum. `latency|<upper bound>`: records that took so long."""
Buckets = dict[int, Bucket]
"""Start of a bucket (seconds since the epoch) → its figures; a bucket in which nothing happened is not there."""


class Series:
    """Reads the rolling series of one pipeline."""

    def __init__(self, access: Access) -> None:
        self._access, self._keys = access, access.keys

    def read(self, width: Width, nodes: Sequence[str], destinations: Sequence[str]) -> dict[str, Buckets]:
        """Returns node → buckets, of nodes before the fan-out ("": of the pipeline) and of destinations."""
        asked = [(node, self._keys.series(""), node) for node in nodes]
        asked += [(Node.destination(id), self._keys.series(id), "") for id in destinations]
        found = self._access.read(*(command(key, prefix, width) for _, key, prefix in asked))
        return {name: buckets(texts, width) for (name, _, _), texts in zip(asked, found)}


def command(key: str, node: str, width: Width) -> tuple[Any, ...]:
    """Returns the command that reads one series."""
    return ("HMGET", key, f"{node}|now", *(f"{node}|{width.seconds}|{n}" for n in range(width.stretches)))


def buckets(texts: Iterable[str | None], width: Width) -> Buckets:
    """Reads the answer to `command`."""
    out: Buckets = {}

    def add(at: int, figures: Iterable[tuple[str, int]]) -> None:
        # A clock that went back has begun a bucket twice.
        bucket = out.setdefault(at // width.seconds * width.seconds, {})
        for letter, n in figures:
            if name := _FIGURES.get(letter):
                bucket[name] = bucket.get(name, 0) + n

    now, *stretches = texts
    for text in stretches:
        stretch, *parts = (text or "").split(";")
        for part in parts:
            digits = len(part) - len(part.lstrip("0123456789"))
            at = (int(stretch) * width.buckets + int(part[:digits])) * width.seconds
            add(at, ((letter, int(n)) for letter, n in _FIGURE.findall(part, digits)))
    if now:
        sums = orjson.loads(now)
        add(int(sums.pop("at")) * FINE.seconds, sums.items())
    return out


_FIGURE = re.compile(r"([A-Za-z])(\d+)")
_READ = re.compile(rf";(\d++)[^;{LETTERS['read']}]*+{LETTERS['read']}(\d++)")


def reads(texts: Sequence[str | None], times: Sequence[int]) -> list[int]:
    """Returns the records read in each wide bucket, by the bucket of now and stretches of wide buckets. `times`: starts
    of buckets, each `COARSE.seconds` after the one before. For a list of a thousand: no other figure is looked at."""
    step, first, out = COARSE.seconds, times[0], [0] * len(times)
    now, *stretches = texts
    for text in stretches:
        if not text:
            continue
        begins = int(text[: text.index(";")]) * COARSE.buckets - first // step
        for bucket, n in _READ.findall(text):
            if 0 <= (at := begins + int(bucket)) < len(out):
                out[at] += int(n)
    if now:
        sums = orjson.loads(now)
        if 0 <= (at := (int(sums["at"]) * FINE.seconds - first) // step) < len(out):
            out[at] += int(sums.get(LETTERS["read"], 0))
    return out


def sampled(counts: Mapping[str, int], observed: Mapping[str, int]) -> dict[str, int]:
    """Returns the letters that a confirm adds to a destination's series: of its counters, and of the latencies among
    its durations (`metrics.histogram`)."""
    out = {LETTERS[name]: n for name, n in counts.items() if n and name in LETTERS}
    for field, n in observed.items():
        _, what, bound = field.split("|")
        if what == LATENCY and bound in _OF_BOUND:
            out[_OF_BOUND[bound]] = n
    return out
