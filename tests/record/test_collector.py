"""The cycle collector is slowed only while records pass."""

from __future__ import annotations

import gc

import pytest

from conduit_tasks.record.collector import OBJECTS, seldom_collecting


def test_cycles_are_looked_for_rarely_inside_and_as_before_afterwards() -> None:
    # Given the collector as it is set
    before = gc.get_threshold()
    # When a block passes records, and another fails in the middle
    with seldom_collecting():
        inside = gc.get_threshold()
    with pytest.raises(ValueError, match="broken"), seldom_collecting():
        raise ValueError("broken")
    # Then it was rare inside, still on, and is as before
    assert inside[0] == OBJECTS
    assert gc.isenabled()
    assert gc.get_threshold() == before
