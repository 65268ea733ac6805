"""The demo on a stack that runs elsewhere, whose parts may be away for a while."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conduit_tasks.demo.__main__ import moved_on, told
from conduit_tasks.settings import forget

ROOT = Path(__file__).parents[2]


def test_a_redis_that_is_away_does_not_end_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "include" / "pipelines").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "include" / "pipelines" / "flights.yaml", home / "include" / "pipelines")
    # Port 1 is nobody's.
    monkeypatch.setenv("CONDUIT_REDIS_URL", "redis://127.0.0.1:1/0")
    forget()
    assert "Redis does not answer" in moved_on("http://127.0.0.1:1", patient=True)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0, 336_776, "336,776 events read, 336,776 of them since this command looked first"),
        # The schedule's own run was faster
        (120_000, 336_776, "336,776 events read, 216,776 of them since this command looked first"),
        (336_776, 336_776, "all 336,776 events were read when this command looked first"),
    ],
)
def test_what_a_run_of_the_schedule_read_is_counted_too(before: int, after: int, said: str) -> None:
    assert told(before, after) == said
