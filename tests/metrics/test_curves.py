"""Curves from buckets of time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from conduit_tasks.metrics import curves
from conduit_tasks.metrics.histogram import observed


@pytest.mark.parametrize(("seconds", "bucket"), [(7_200, 10), (14 * 86_400, 300), (60, 10)])
def test_a_curve_has_a_point_for_each_step_and_not_more_than_a_chart_shows(seconds: int, bucket: int) -> None:
    now = 1_800_000_007.5
    step, times = curves.steps(now - seconds, now, bucket)
    assert step % bucket == 0
    assert len(times) <= curves.POINTS + 1
    assert times[0] <= now - seconds < times[1]
    assert times[-1] <= now < times[-1] + step


def test_no_figure_is_lost_where_buckets_are_put_together() -> None:
    buckets = {at: {"read": at} for at in range(0, 1_000, 10)}
    found = curves.sums(buckets, list(range(0, 1_000, 50)), 50)
    assert [f["read"] for f in found][:2] == [0 + 10 + 20 + 30 + 40, 50 + 60 + 70 + 80 + 90]
    assert sum(f["read"] for f in found) == sum(range(0, 1_000, 10))


def test_lag_and_age_are_those_of_a_queue() -> None:
    """Given a queue that is watched, then lag and age made of what came and went are what was seen."""
    chance = random.Random(2)
    queue: list[int] = []
    came, went, seen, oldest = [], [], [], []
    for n in range(300):
        more = chance.choice((0, 0, 5, 20))
        queue += [n] * more
        less = min(len(queue), chance.choice((0, 3, 15)) if not 100 < n < 150 else 0)
        del queue[:less]
        came.append(more)
        went.append(less)
        seen.append(len(queue))
        oldest.append((n - queue[0]) * 10 if queue else 0)
    assert curves.lags(len(queue), came, went) == seen
    assert curves.ages(came, seen, 10) == oldest
    # What came before the first step has an age that nobody knows
    late = curves.lags(len(queue), came[150:], went[150:])
    assert late == seen[150:]
    assert curves.ages(came[150:], late, 10)[0] is None


def test_percentiles_are_those_of_the_histogram() -> None:
    took = np.random.default_rng(3).exponential(2.0, 20_000)
    bucket = {name.partition("|")[2]: n for name, n in observed("d", "latency", took).items()}
    for share in (0.5, 0.99):
        found = curves.quantile(bucket, share)
        assert found is not None
        assert found == pytest.approx(float(np.quantile(took, share)), rel=0.25)
    assert curves.quantile({}, 0.5) is None
    assert curves.quantile({"latency|inf": 3}, 0.5) == 86_400.0, "longer than the last bound"
    assert curves.quantile({"latency|0.1": 4}, 0.5) == 0.05
