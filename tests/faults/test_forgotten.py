"""Redis forgets its last second, or an older copy of it is put back: what was told to a source or a destination stands
(SEMANTICS X7, T2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.redis.connector import RedisSource
from conduit_tasks.errors import ConduitError, StateLost
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.deliver_task import DeliverTask
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.faults.forgetful import MINUTES, Forgetful, Queue, broker, numbers, pipeline, queue
from tests.faults.parts import account, drive, events
from tests.micro_batch.endings import Crash
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.redis_server import RedisServer

__all__ = ["broker", "queue"]


@pytest.mark.proves("T2", "X7", "C10", "I1", "T1")
@pytest.mark.parametrize(
    ("ack_on", "retention", "began"), [("stored", "0s", True), ("delivered", "24h", True), ("stored", "24h", False)]
)
def test_what_a_queue_was_told_in_the_second_that_redis_forgot_is_delivered(
    quick: Path, broker: Forgetful, queue: Queue, ack_on: str, retention: str, began: bool
) -> None:
    # Given a pipeline that has delivered something before, or not yet
    write_pipeline(quick, "p", pipeline(queue, ack_on, retention))
    drive()
    if began:
        queue.put(3)
        drive()
    early = broker.log()
    # When everything from the plan to the ack happens in one second, of which Redis keeps a part
    for part in range(5):
        queue.put(7)
        run_once("p")
        late = broker.log()
        broker.put_back(early + late[len(early) : len(early) + (len(late) - len(early)) * part // 5])
        # Then nothing is missing, or twice, and nobody has to do anything
        drive()
        assert sorted(numbers(quick)) == list(range(queue.count)), f"{part}/5 of it were kept"
        assert queue.left() == 0
        early = broker.log()
    account()


@pytest.mark.proves("T2", "X7", "C10", "I1")
def test_a_redis_that_forgets_under_a_run_does_not_seal_another_micro_batch_under_a_number_that_was_told(
    quick: Path, broker: Forgetful, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a micro-batch that is opened
    write_pipeline(quick, "p", pipeline(queue))
    drive()
    queue.put(5)
    plan_run("p", "r")
    early = broker.log()
    tell: Callable[..., None] = RedisSource.ack

    def and_crash(self: RedisSource, position: Any) -> None:
        tell(self, position)
        broker.put_back(early)

    # When its source was told, then Redis is back where it was before anything was read
    with monkeypatch.context() as patch, opened("p", "r") as context:
        patch.setattr(RedisSource, "ack", and_crash)
        with pytest.raises(ConduitError):
            read_source(context, "in", here, 5.0)
    queue.put(5)
    # And the task is tried again, without a plan before it
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    drive()
    # Then both are delivered
    assert sorted(numbers(quick)) == list(range(10))
    account()


@pytest.mark.proves("C12", "X7")
def test_a_source_is_told_the_same_again_where_redis_forgot_that_it_was_told(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a crash right after a source was told, which takes Redis back to before the plan
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 5)
    drive()
    early = broker.log()
    rows = events(quick / "data", 5, 5)
    told: list[Any] = []

    def and_crash(_: FileSource, position: Any) -> None:
        told.append(position)
        if len(told) == 1:
            raise Crash

    monkeypatch.setattr(FileSource, "ack", and_crash)
    with pytest.raises(Crash):
        run_once("p")
    broker.put_back(early)
    # When more is read before the next ack
    rows += events(quick / "data", 5, 10)
    drive()
    # Then the source hears the same once more, and only then what follows
    assert told[1] == told[0]
    assert len(told) == 3
    assert caplog.text.count("Redis has forgotten that") == 1
    assert payloads(quick / "out/a.jsonl")[5:] == rows


@pytest.mark.proves("X7", "I6")
def test_marks_prove_what_is_delivered_also_where_redis_clock_went_back(quick: Path, redis_server: RedisServer) -> None:
    # Given a token of a seal that is an hour ahead of the server's clock, as tokens only grow
    write_pipeline(quick, "p", MINUTES.replace("micro-batch:", "spool: {retention: 0s}\n    micro-batch:"))
    drive()
    broker = state("p")
    broker.redis.hset(broker.keys.lease("seal"), "token", str(int((broker.access.now() + 3600) * 1e6)))
    # When something is delivered
    rows = events(quick / "data", 20)
    drive()
    # Then its files are collected
    assert payloads(quick / "out/a.jsonl") == rows
    assert broker.access.numbers("sealed", "collected") == [1, 1]
    broker.close()


@pytest.mark.proves("X7")
def test_a_mark_is_not_replaced_by_one_that_knows_less(quick: Path, broker: Forgetful, queue: Queue) -> None:
    # Given a source that was told something, which Redis forgets
    write_pipeline(quick, "p", pipeline(queue))
    queue.put(3)
    drive()
    early = broker.log()
    queue.put(3)
    drive()
    broker.put_back(early)
    # When somebody who has not noticed writes the next mark, then it is refused
    with (
        opened("p", "r") as context,
        context.broker.leases.acquire("acks.in", "somebody") as lease,
        pytest.raises(StateLost, match=r"it says 1, the mark in the spool 2"),
    ):
        Marker(context, "acks.in", lease.token).mark()
    drive()
    assert numbers(quick) == list(range(6))


@pytest.mark.proves("X7", "I4")
def test_a_delivery_that_looked_before_redis_forgot_touches_nothing(quick: Path, broker: Forgetful) -> None:
    # Given a micro-batch that is sealed, and of which Redis forgets that it was delivered
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 3)
    plan_run("p", "one")
    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
    early = broker.log()
    drive()
    there = (quick / "out/a.jsonl").read_bytes()
    assert there
    broker.put_back(early)
    # When a task that was found to have work before delivers it, and would die with its first write
    with opened("p", "one") as context, pytest.raises(StateLost, match=r"it says 0, the mark in the spool 1"):
        deliver_destination(context, "a", died, run="one", wait=5.0, cleared=False, progress=lambda **_: None)
    # Then what was confirmed stands, and the next run finds it
    assert (quick / "out/a.jsonl").read_bytes() == there
    drive()
    assert (quick / "out/a.jsonl").read_bytes() == there


@pytest.mark.proves("X7", "I4")
def test_a_delivery_whose_successor_redis_forgot_touches_nothing(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an executor that is about to open its file, with what Redis said before
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 3)
    plan_run("p", "one")
    opens = FileDestination.open
    there: list[bytes] = []

    def late(self: FileDestination, state: dict[str, Any] | None) -> None:
        if not there:
            # When it stands still until another has delivered, of which Redis forgets everything
            there.append(b"")
            early = broker.log()
            lease.release()
            drive()
            there.append((quick / "out/a.jsonl").read_bytes())
            broker.put_back(early)
        opens(self, state)

    with opened("p", "one") as context:
        read_source(context, "in", here, 5.0)
        lease = context.broker.leases.acquire("destinations.a", context.owner, ttl=60.0)
        task = DeliverTask(pipeline=context.pipeline, destination="a", number=1, token=lease.token, run="one")
        monkeypatch.setattr(FileDestination, "open", late)
        answer = task(0)
    # Then it cuts nothing away, although Redis says that it has the lease
    assert isinstance(answer, StateLost), answer
    assert there[1]
    assert (quick / "out/a.jsonl").read_bytes() == there[1]
    drive()
    assert (quick / "out/a.jsonl").read_bytes() == there[1]


def died(function: Callable[[Any], Any], pieces: Any) -> list[Any]:
    """Executors that die once they have a file open."""
    (piece,) = pieces
    write = FileDestination.write

    def die(self: FileDestination, rows: Any) -> None:
        raise Crash

    FileDestination.write = die  # type: ignore[method-assign]
    try:
        return [function(piece)]
    finally:
        FileDestination.write = write  # type: ignore[method-assign]
