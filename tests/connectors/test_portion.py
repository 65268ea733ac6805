"""What sources ask for at a time has a bounded size, whatever the records' size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.connectors.portion import BYTES, Portion


@given(size=st.integers(1, 1 << 30), most=st.integers(1, 100_000))
def test_a_portion_settles_at_what_fits_and_never_leaps_far(size: int, most: int) -> None:
    portion = Portion(most)
    for _ in range(20):
        before = portion.size
        portion.came(before, before * size)
        assert 1 <= portion.size <= min(most, before * 16)
    assert portion.size == max(1, min(most, BYTES // size))


def test_nothing_came_says_nothing() -> None:
    portion = Portion(10)
    portion.came(0, 0)
    assert portion.size == 10
