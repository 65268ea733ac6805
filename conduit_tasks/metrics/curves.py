"""Curves over time from buckets of figures: sums of a step, lag, percentiles of latency. Plain numbers in and out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from conduit_tasks.metrics.histogram import BOUNDS, LATENCY, NAMES

Bucket = Mapping[str, int]
Buckets = Mapping[int, Bucket]
"""Start of a bucket in seconds → figures of it."""

POINTS = 720
"""Most points of a curve: more than a chart has pixels for."""


def steps(since: float, until: float, bucket: int) -> tuple[int, list[int]]:
    """Returns the seconds of a step, a multiple of `bucket`, and the starts of the steps from `since` to `until`."""
    step = bucket * max(1, -(-int(until - since) // (bucket * POINTS)))
    first = int(since) // step * step
    return step, list(range(first, max(first, int(until)) + 1, step))


def sums(buckets: Buckets, times: Sequence[int], step: int) -> list[dict[str, int]]:
    """Returns the figures of each step."""
    out: list[dict[str, int]] = [{} for _ in times]
    for at, bucket in buckets.items():
        n = (at - times[0]) // step
        if 0 <= n < len(out):
            for name, figure in bucket.items():
                out[n][name] = out[n].get(name, 0) + figure
    return out


def lags(now: int, came: Sequence[int], went: Sequence[int]) -> list[int]:
    """Returns what was waiting at the end of each step: `now` at the end of the last one; `came`, `went`: in each step.

    Nothing keeps a lag over time: what waits at one moment is what waits at the next one, less what came, and with what
    went in between.
    """
    out: list[int] = []
    left = now
    for more, less in zip(reversed(came), reversed(went)):
        out.append(max(0, left))
        left += less - more
    return out[::-1]


def ages(came: Sequence[int], waiting: Sequence[int], step: int) -> list[int | None]:
    """Returns the age in seconds of the oldest record that waited at the end of each step, to a step exactly: it came
    when so many had come as were not waiting any more. None if it came before the first step."""
    total = list(accumulate(came))
    out: list[int | None] = []
    for n, behind in enumerate(waiting):
        gone = total[n] - behind
        if behind == 0:
            out.append(0)
        elif gone < 0:
            out.append(None)
        else:
            out.append((n - bisect_left(total, gone + 1)) * step)
    return out


def quantile(bucket: Bucket, share: float) -> float | None:
    """Returns the latency in seconds below which this share of the records lies, interpolated within a bucket of the
    histogram; None if there are none."""
    counts = [bucket.get(f"{LATENCY}|{name}", 0) for name in NAMES]
    if not (total := sum(counts)):
        return None
    wanted, below = share * total, 0
    for n, count in enumerate(counts):
        if count and below + count >= wanted:
            if n == len(BOUNDS):
                break
            low = BOUNDS[n - 1] if n else 0.0
            return round(low + (BOUNDS[n] - low) * (wanted - below) / count, 3)
        below += count
    return float(BOUNDS[-1])
