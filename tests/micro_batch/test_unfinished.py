"""A cleared task's redelivery that is left unfinished has an end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from conduit_tasks.micro_batch import collection
from conduit_tasks.micro_batch.context import opened
from tests.micro_batch.harness import run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events


def test_what_a_given_up_redelivery_held_is_collected_and_the_log_says_so(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collection, "UNFINISHED", 0.0)
    write_pipeline(home, "p", TWO.replace("    connectors:", "    spool: {retention: 1s}\n    connectors:"))
    events(home / "data", "a.jsonl", 0, 5)
    run_once("p", "first")
    broker = state("p")
    with broker.leases.acquire("destinations.all", "t") as lease:
        broker.redeliveries.begin("all", "first", lease.token)
    # As after a second: nothing but the redelivery keeps it
    broker.redis.hset(broker.keys.micro_batch(1), "sealed_at", "1")
    with opened("p", "test") as context:
        assert collection.collect(context) == []
        broker.redis.hset(broker.keys.redo("all"), "at", "1")
        with caplog.at_level(logging.WARNING):
            assert collection.collect(context) == [1]
    assert "run first had delivered to all was left unfinished" in caplog.text
    assert "conduit replay p" in caplog.text
    broker.close()
