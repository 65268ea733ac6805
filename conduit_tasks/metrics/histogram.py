"""Histograms of seconds as the broker keeps them: counts per upper bound and a sum, added up by its scripts.

They are counted where it happens, from whole arrays, and told in the same command as what they tell of, so they count
a retried call or a repeated task no more often than the broker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400)
"""Upper bounds in seconds, each included; what is above the last has none."""
_NAMES = (*(f"{bound:g}" for bound in BOUNDS), "inf")
_SUM = "ms"

LATENCY = "latency"
"""From an event to its confirmation; other histograms are of a node's stages."""


@dataclass(frozen=True)
class Histogram:
    """`counts`: per bound of `BOUNDS`, then of what is above them all; not cumulative. `sum` in seconds."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.counts)


def observed(node: str, what: str, seconds: Any) -> dict[str, int]:
    """Fields to add to the broker's hash for these durations: a number, or a NumPy array of them.

    Negative ones (clocks differ) count as 0. {} where there are none.
    """
    import numpy as np

    values = np.maximum(np.atleast_1d(np.asarray(seconds, dtype=np.float64)), 0.0)
    if not len(values):
        return {}
    found = np.bincount(np.searchsorted(BOUNDS, values, side="left"))
    fields = {f"{node}|{what}|{_NAMES[i]}": int(found[i]) for i in np.flatnonzero(found).tolist()}
    return {**fields, f"{node}|{what}|{_SUM}": round(float(values.sum()) * 1000)}


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of such fields."""
    out: dict[str, int] = {}
    for part in parts:
        for name, n in part.items():
            out[name] = out.get(name, 0) + n
    return out


def histograms(fields: Mapping[str, str]) -> dict[tuple[str, str], Histogram]:
    """(node, what) → histogram, of such a hash. What was counted under a bound that is none any more is above all."""
    out: dict[tuple[str, str], tuple[list[int], float]] = {}
    for name, text in fields.items():
        node, what, bound = name.split("|")
        counts, total = out.get((node, what), ([0] * len(_NAMES), 0.0))
        if bound == _SUM:
            total = int(text) / 1000
        else:
            counts[_NAMES.index(bound) if bound in _NAMES else -1] += int(text)
        out[node, what] = (counts, total)
    return {key: Histogram(tuple(counts), total) for key, (counts, total) in sorted(out.items())}
