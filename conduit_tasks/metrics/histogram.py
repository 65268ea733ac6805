"""Histograms of seconds as the broker keeps them: counts per upper bound and a sum, added up by its scripts.

Durations are counted where they arise, from whole arrays, and sent in the same command as the change that they measure:
a retried call or a repeated task counts no more often than that change does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600, 86_400)
"""Upper bounds in seconds, inclusive; durations above the last one have a bucket without a bound."""
NAMES = (*(f"{bound:g}" for bound in BOUNDS), "inf")
"""The same as texts, and the bucket above them all."""
_SUM = "ms"

LATENCY = "latency"
"""Name of the histogram of times from an event to its confirmation; the others are of a node's stages."""


@dataclass(frozen=True)
class Histogram:
    """One histogram. `counts`: per bound of `BOUNDS`, then above them all; not cumulative. `sum` in seconds."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        """Number of observed durations."""
        return sum(self.counts)


def observed(node: str, what: str, seconds: Any) -> dict[str, int]:
    """Returns the fields to add to the broker's hash for these durations: a number, or a NumPy array of them.

    Negative durations (clocks differ) count as 0. Returns {} if there are none.
    """
    import numpy as np

    values = np.maximum(np.atleast_1d(np.asarray(seconds, dtype=np.float64)), 0.0)
    if not len(values):
        return {}
    found = np.bincount(np.searchsorted(BOUNDS, values, side="left"))
    fields = {f"{node}|{what}|{NAMES[i]}": int(found[i]) for i in np.flatnonzero(found).tolist()}
    return {**fields, f"{node}|{what}|{_SUM}": round(float(values.sum()) * 1000)}


def added(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Returns the sum of such fields."""
    out: dict[str, int] = {}
    for part in parts:
        for name, n in part.items():
            out[name] = out.get(name, 0) + n
    return out


def histograms(fields: Mapping[str, str]) -> dict[tuple[str, str], Histogram]:
    """Returns (node, what) → histogram from such a hash. Counts under a bound that no longer exists go above all."""
    out: dict[tuple[str, str], tuple[list[int], float]] = {}
    for name, text in fields.items():
        node, what, bound = name.split("|")
        counts, total = out.get((node, what), ([0] * len(NAMES), 0.0))
        if bound == _SUM:
            total = int(text) / 1000
        else:
            counts[NAMES.index(bound) if bound in NAMES else -1] += int(text)
        out[node, what] = (counts, total)
    return {key: Histogram(tuple(counts), total) for key, (counts, total) in sorted(out.items())}
