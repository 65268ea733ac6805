"""The benchmark that needs a whole stack, with a thousand events on the one that the tests share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks import whole
from benchmarks.place import PIPELINE, Place
from tests.stack.conftest import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]


@dataclass(frozen=True, kw_only=True)
class SharedPlace(Place):
    """A place whose home others use, too."""

    shared: Path

    @property
    def home(self) -> Path:
        return self.shared

    def pipeline(self, *connectors: dict[str, Any], **keys: Any) -> None:
        self.write_pipeline(*connectors, **keys)


@pytest.mark.slow
def test_events_through_everything_are_counted_and_a_run_with_nothing_to_do_starts_no_node(
    stack: Stack, tmp_path: Path
) -> None:
    place = SharedPlace(tmp_path, shared=stack.home)
    with stack.lent(PIPELINE), stack.api() as api:
        whole.write_pipeline(place)
        runs = whole.measure(place, [1_000], api, stack.state)

    assert [one.nodes for one in runs.values()] == [4, 4, 4, 0]
    # Where a source is done before its destinations have started, another run looks whether something is left
    assert all(one.runs <= 2 for one in runs.values())
    assert all(0 < one.acked <= one.seconds for one in runs.values())
    assert all(min(one.memory) > 1 << 20 for one in list(runs.values())[:3])
    assert all(len(whole.row(one)) == len(whole.HEAD) - 1 for one in runs.values())
