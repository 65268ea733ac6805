"""Sets of non-negative integers as sorted, inclusive ranges: the delivery state of one micro-batch.

Redis holds them, and the scripts compute with them, in the text form `"0-4999,6000-6000"`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

MOST = 4_000
"""Limit of ranges in one confirm (`confirm.lua`)."""

_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class RangeSet:
    """An immutable set of integers; `ranges` are inclusive, sorted and never touch. Build with `of` or `parse`."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> RangeSet:
        """Builds a set of inclusive ranges, in any order, overlapping or not. Raises ValueError on an invalid range."""
        merged: list[tuple[int, int]] = []
        for first, last in sorted(ranges):
            if first < 0 or last < first:
                raise ValueError(f"{first}-{last} is not a range")
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], last))
            else:
                merged.append((first, last))
        return cls(tuple(merged))

    @classmethod
    def parse(cls, text: str | None) -> RangeSet:
        """Reads the text form; empty or None is the empty set. Raises ValueError on anything else."""
        pairs = []
        for part in (text or "").split(",") if text else ():
            match = _RANGE.fullmatch(part)
            if match is None:
                raise ValueError(f"{part!r} is not a range; ranges look like 0-4999,6000-6000")
            pairs.append((int(match[1]), int(match[2])))
        return cls.of(pairs)

    def __str__(self) -> str:
        return ",".join(f"{first}-{last}" for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self.ranges)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self.ranges, number, key=lambda r: r[0])
        return at > 0 and number <= self.ranges[at - 1][1]

    @property
    def count(self) -> int:
        """Number of integers in the set."""
        return sum(last - first + 1 for first, last in self.ranges)

    def add(self, other: RangeSet | Sequence[tuple[int, int]]) -> RangeSet:
        """Returns the union."""
        return RangeSet.of([*self.ranges, *other])

    def subtract(self, other: RangeSet) -> RangeSet:
        """Returns the integers that are in this set and not in `other`."""
        out: list[tuple[int, int]] = []
        holes = other.ranges
        j = 0
        for first, last in self.ranges:
            start = first
            while j < len(holes) and holes[j][1] < start:
                j += 1
            k = j
            while k < len(holes) and holes[k][0] <= last:
                if holes[k][0] > start:
                    out.append((start, holes[k][0] - 1))
                start = holes[k][1] + 1
                k += 1
            if start <= last:
                out.append((start, last))
        return RangeSet(tuple(out))

    def intersect(self, other: RangeSet) -> RangeSet:
        """Returns the integers that are in both sets."""
        return self.subtract(self.subtract(other))

    def complement(self, total: int) -> RangeSet:
        """Returns the integers of [0, total) that are not in this set."""
        return (RangeSet(((0, total - 1),)) if total > 0 else RangeSet()).subtract(self)

    def contains(self, other: RangeSet) -> bool:
        """Returns whether all of `other` is in this set."""
        return not other.subtract(self)

    def disjoint(self, other: RangeSet) -> bool:
        """Returns whether no integer is in both sets."""
        return self.subtract(other) == self
