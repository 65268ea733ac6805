"""A node that stood still between its look at a micro-batch and its work: others have ended it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.seal import seal_if_complete
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events

PROCESSED = """
    processors: [{id: p, plugin: field.set, settings: {field: .Metadata.seen, value: "yes"}}]
"""


@pytest.mark.proves("I3", "I4")
@pytest.mark.parametrize("collected", [False, True])
@pytest.mark.parametrize("staged", [False, True])
def test_what_others_have_sealed_and_maybe_collected_meanwhile_stands(
    home: Path, monkeypatch: pytest.MonkeyPatch, collected: bool, staged: bool
) -> None:
    # Given a look at a micro-batch, with or without what its source staged
    kept = "{retention: 0s}" if collected else "{retention: 1h}"
    text = TWO.replace("    connectors:", f"    spool: {kept}{PROCESSED}    connectors:")
    write_pipeline(home, "p", text)
    rows = events(home / "data", "a.jsonl", 0, 10)
    plan_run("p", "one")
    if staged:
        with opened("p", "one") as context:
            read_source(context, "in", here, 5.0)
    broker = state("p")
    old = broker.micro_batches.unsealed()
    assert old.number == 1
    # When others seal, deliver and ack it
    run_once("p", "two")
    run_once("p", "three")
    assert (broker.micro_batches.find(1) is None) == collected
    # Then who had looked finds nothing to do
    with opened("p", "one") as context:
        monkeypatch.setattr(context.broker.micro_batches, "unsealed", lambda: old)
        assert seal_if_complete(context, 1) == "micro-batch 1 is sealed"
        assert read_source(context, "in", never, 5.0) == "micro-batch 1 is sealed"
        if staged:
            assert process(context, never, 5.0) == "micro-batch 1 is sealed"
    # And everything is there once
    assert payloads(home / "out/all.jsonl") == rows
    assert broker.micro_batches.latest_sealed() == 1
    broker.close()


def never(*_: Any) -> list[Any]:
    raise AssertionError("it is not worked on again")


@pytest.mark.proves("I3", "C16")
def test_what_a_stop_has_dropped_meanwhile_is_not_processed_before_it_is_read_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a look at a micro-batch that its source has staged
    write_pipeline(home, "p", TWO.replace("    connectors:", f"{PROCESSED}    connectors:"))
    rows = events(home / "data", "a.jsonl", 0, 10)
    plan_run("p", "one")
    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
    broker = state("p")
    old = broker.micro_batches.unsealed()
    # When an operator stops the pipeline by force, which drops what is not sealed, and starts it
    broker.lifecycle.force_stop()
    broker.lifecycle.start()
    # Then the processors wait for the source
    with opened("p", "one") as context:
        monkeypatch.setattr(context.broker.micro_batches, "unsealed", lambda: old)
        assert process(context, never, 5.0) == "micro-batch 1 is not read yet: sources.in"
    # And everything is there once in the end
    run_once("p", "two")
    assert payloads(home / "out/all.jsonl") == rows
    broker.close()
