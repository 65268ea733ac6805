"""Marks of a moment that Redis forgets: one that is put together of two moments, and one that is written when others
have gone on without it (SEMANTICS X7)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.access import Access
from conduit_tasks.errors import StateLost
from conduit_tasks.micro_batch import rebuild
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.spool.checkpoint import Checkpoint, Mark
from tests.faults.forgetful import MINUTES, Forgetful, broker
from tests.faults.parts import account, drive, events
from tests.faults.test_forgotten_again import redrive, waiting
from tests.faults.test_forgotten_letters import delivered, letters
from tests.micro_batch.harness import here, payloads, state, write_pipeline

__all__ = ["broker"]


@pytest.mark.proves("X7", "T2")
@pytest.mark.parametrize("node", ["acks.in", "destinations.a"])
@pytest.mark.parametrize("reading", range(1, 5))
def test_a_mark_is_of_one_moment_if_redis_forgets_while_it_is_read(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch, node: str, reading: int
) -> None:
    # Given two micro-batches that are delivered and acked, and what Redis knew after the first
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 5)
    drive()
    early = broker.log()
    events(quick / "data", 5, 5)
    drive()
    with opened("p", "look") as context:
        before = Checkpoint(context.spool, "p").read(node)[node]
        calls = [0]

        def forgetting(real: Callable[..., Any]) -> Callable[..., Any]:
            def read(*given: Any) -> Any:
                found = real(*given)
                calls[0] += 1
                if calls[0] == reading:
                    broker.put_back(early)
                return found

            return read

        # When Redis goes back there after one of the readings that a mark is put together of
        with monkeypatch.context() as patch:
            for name in ("hash", "scanned", "field"):
                patch.setattr(Access, name, forgetting(getattr(Access, name)))
            with suppress(StateLost):
                Marker(context, node, before.token + 1).mark()
        # Then the mark says what Redis knew before, or after: not the one of this and the other of that
        after = Checkpoint(context.spool, "p").read(node)[node]
    assert (after.number, after.known) == (before.number, before.known)
    assert after.hashes == before.hashes
    # And everything goes on from there
    events(quick / "data", 5, 10)
    drive()
    assert [row["n"] for row in payloads(quick / "out/a.jsonl")] == list(range(15))
    account()


@pytest.mark.proves("X7", "O1")
def test_numbers_of_records_that_redis_forgets_while_a_mark_is_read_are_not_in_it(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an index that counts records which are staged, and which Redis has forgotten when it is read again
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 5)
    drive()
    with opened("p", "look") as context:
        node, keys = "acks.in", context.broker.keys
        before = Checkpoint(context.spool, "p").read(node)[node]
        scanned, staged = Access.scanned, [{"": "1000"}]

        def first_counted(self: Access, key: str) -> dict[str, str]:
            return staged.pop() if key == keys.index("in") and staged else scanned(self, key)

        monkeypatch.setattr(Access, "scanned", first_counted)
        Marker(context, node, before.token + 1).mark()
        after = Checkpoint(context.spool, "p").read(node)[node]
    assert not staged
    assert after.hashes["index"] == before.hashes["index"]


def late_mark(quick: Path, broker: Forgetful) -> tuple[Mark, list[dict[str, Any]]]:
    """Has a micro-batch delivered by a task that then stands still before it writes its mark, and Redis forget all of
    that; returns the mark. Then the micro-batch is read and sealed again."""
    write_pipeline(quick, "p", MINUTES)
    rows = events(quick / "data", 3)
    drive()
    rows += events(quick / "data", 5, 3)
    plan_run("p", "r")
    early = broker.log()
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    late: list[Mark] = []
    with pytest.MonkeyPatch.context() as patch, opened("p", "r") as context:
        patch.setattr(Checkpoint, "write", lambda _, mark: late.append(mark))
        deliver_destination(context, "a", here, run="r", wait=5.0, cleared=False, progress=lambda **_: None)
    broker.put_back(early)
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    return late[-1], rows


@pytest.mark.proves("X7", "I10")
@pytest.mark.parametrize("rebuilt", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_mark_that_comes_when_others_have_gone_on_without_it_changes_nothing(
    quick: Path, broker: Forgetful, again: bool, rebuilt: bool
) -> None:
    mark, rows = late_mark(quick, broker)
    # Given that it is delivered again, or not yet
    with opened("p", "r") as context:
        if again:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Checkpoint, "write", lambda *_: None)
                deliver_destination(context, "a", here, run="r", wait=5.0, cleared=False, progress=lambda **_: None)
        # When the mark is written
        Checkpoint(context.spool, "p").write(mark)
        # And the state is rebuilt for another reason, or not
        if rebuilt:
            build = partial(rebuild.from_spool, context.pipeline, context.spool, context.broker)
            rebuild.apply(context.broker, build(), replace=True, again=build)
    rows += events(quick / "data", 2, 8)
    drive()
    # Then everything is there once, and counted once
    assert payloads(quick / "out/a.jsonl") == rows
    broker_ = state("p")
    counters = broker_.deliveries.get("a").counters
    broker_.close()
    assert (counters["matched"], counters["delivered"]) == (10, 10)
    account()


@pytest.mark.proves("X7", "X2", "T1")
def test_a_mark_that_comes_late_still_tells_of_a_redrive(quick: Path, broker: Forgetful) -> None:
    # Given a second that Redis forgets: a micro-batch is sealed and delivered, and letters are redriven
    source = waiting(quick)
    source.put(("B", ""))
    plan_run("p", "r")
    early = broker.log()
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    late: list[Mark] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "write", lambda _, mark: late.append(mark))
        with opened("p", "r") as context:
            deliver_destination(context, "a", here, run="r", wait=5.0, cleared=False, progress=lambda **_: None)
        assert redrive().exit_code == 0
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    broker.put_back(early)
    # When the micro-batch is sealed again, and only then the mark of all that is written
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
        Checkpoint(context.spool, "p").write(late[-1])
    drive()
    redrive()
    # Then what was redriven stands, once, and of the micro-batch nothing is missing
    assert delivered(quick, "A") == [1, 2, 3, 4, 5, 6, 7]
    assert set(delivered(quick, "B")) == {0, 8}
    assert letters("a") == []
