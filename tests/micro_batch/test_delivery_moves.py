"""A delivery that ends well moves its destination's cursor, or is an error: it would go on for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.errors import InvariantBroken
from conduit_tasks.micro_batch.deliver import Drain
from tests.micro_batch.harness import run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events


@pytest.mark.proves("I10")
def test_a_delivery_that_confirms_nothing_is_an_error_and_loses_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 30)
    with monkeypatch.context() as patch:
        patch.setattr(Drain, "_deliver", lambda *_, **__: None)
        with pytest.raises(InvariantBroken, match="all of p has all of micro-batch 1, and its cursor stays"):
            run_once("p", "r1")
    run_once("p", "r2")
    broker = state("p")
    assert broker.deliveries.get("all").counters["delivered"] == 30
    broker.close()
