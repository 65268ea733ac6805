"""The tests' own waiting says what did not come true."""

from __future__ import annotations

import pytest

from tests.waiting import until


def test_what_comes_true_is_returned() -> None:
    left = iter((0, "", 3))
    assert until(lambda: next(left)) == 3


def test_who_waits_in_vain_is_named() -> None:
    said = r"^test_waiting.py:\d+ until\(lambda: \[\], .* \(waited 0.02 s for a cow\)$"
    with pytest.raises(AssertionError, match=said):
        until(lambda: [], "a cow", seconds=0.02)
