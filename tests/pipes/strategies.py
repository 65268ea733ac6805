"""Strategies and searches for worlds of faults."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, find, settings
from hypothesis import strategies as st

from tests.pipes.world import Faults

seeds = st.integers(0, 2**32 - 1)
some = st.sampled_from([0.0, 0.05, 0.2, 0.4])
few = st.sampled_from([0.0, 0.005, 0.02])
delays = st.sampled_from([0, 3, 20])

bad_routes = st.builds(Faults, seed=seeds, loss=some, repeat=some, delay=delays)
"""Routes that lose, repeat, delay and shuffle."""
resending_routes = st.builds(Faults, seed=seeds, repeat=some, delay=delays)
"""Routes that deliver at least once: they repeat, delay and shuffle."""
bad_routes_and_receivers = st.builds(
    Faults, seed=seeds, loss=some, repeat=some, delay=delays, receiver_dies=few, unstored=some
)

thorough = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def counter_example(worlds: st.SearchStrategy[Faults], broken: Callable[[Faults], bool]) -> Faults:
    """A world in which something is broken that is not promised. Raises NoSuchExample."""
    return find(worlds, broken, settings=settings(max_examples=200, deadline=None, database=None))
