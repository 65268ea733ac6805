"""Durations that the broker is told with what they belong to."""

from __future__ import annotations

import pytest

from conduit_tasks.metrics.histogram import observed
from tests.broker.conftest import Feed


@pytest.mark.proves("I5")
def test_a_confirm_that_is_repeated_observes_nothing_again(feed: Feed) -> None:
    m = feed.sealed(10)
    took = observed("destinations.x", "latency", [3.0] * 4)
    for ranges in ([(0, 3)], [(0, 3)], [(4, 9)], [(4, 9)]):
        feed.confirm("x", m, ranges, observed=took, completing=observed("destinations.x", "deliver", 0.2))
    found = feed.broker.micro_batches.histograms()
    assert (found["destinations.x", "latency"].count, found["destinations.x", "latency"].sum) == (8, 24)
    assert found["destinations.x", "deliver"].count == 1
