"""The benchmark that needs a whole stack, with a thousand events on the one that the tests share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import whole
from benchmarks.place import PIPELINE, Place
from tests.stack.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


@dataclass(frozen=True)
class SharedPlace(Place):
    """A place whose home others use, too."""

    shared: Path

    @property
    def home(self) -> Path:
        return self.shared

    def pipeline(self, *connectors: dict[str, Any], **keys: Any) -> None:
        self.write_pipeline(*connectors, **keys)


def test_events_through_everything_are_counted_and_a_run_with_nothing_to_do_submits_nothing(
    stack: Stack, tmp_path: Path
) -> None:
    place = SharedPlace(tmp_path, stack.home)
    with stack.lent(PIPELINE), stack.api() as api:
        whole.write_pipeline(place, 1_000)
        result = whole.measure(place, 1_000, stack.conduit, api)

    assert result.facts == {"events": 1_001.0, "submits": 2.0, "submits.one": 2.0, "submits.nothing": 0.0}
    assert len(result.rows) == 3
    assert all(math.isfinite(figure.got) for figure in result.figures)
