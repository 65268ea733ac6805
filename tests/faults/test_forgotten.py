"""Redis forgets its last second, or an older copy of it is put back: what was told to a source or a destination stands
(SEMANTICS X7, T2)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from typer.testing import CliRunner

from conduit_tasks.broker import rebuild
from conduit_tasks.cli.main import app
from conduit_tasks.connectors.file import FileSource
from conduit_tasks.connectors.file_destination import FileDestination
from conduit_tasks.connectors.redis import RedisSource
from conduit_tasks.errors import ConduitError, StateLost
from conduit_tasks.micro_batch import forgotten
from conduit_tasks.micro_batch.checkpoint import Marker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import DeliverTask, deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.settings import forget
from conduit_tasks.spool.checkpoint import Mark, covers, trusted
from tests.conftest import RedisServer
from tests.faults.forgetful import Forgetful
from tests.faults.parts import account, drive, events
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.micro_batch.test_crashes import Crash

QUEUE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 5}
    lag-budget: {records: 1000}
    spool: {retention: RETENTION}
    error-recovery: {min-delay: 1ms, max-delay: 1ms}
    connectors:
      - id: in
        type: source
        plugin: redis
        ack-on: ACK_ON
        settings: {url: "URL", streams: in, group: g, data: d, format: json, min-idle: 1ms, delete: "true"}
      - id: out
        type: destination
        plugin: file
        settings: {path: out.jsonl, format: payload}
        delivery: {timeout: 100ms}
"""
MINUTES = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: a, type: destination, plugin: file, settings: {path: out/a.jsonl, format: payload}}
"""


class Queue:
    """A stream on another server than the broker's; what is acked is gone from it."""

    def __init__(self, server: RedisServer) -> None:
        self.url = server.url
        self._client = redis.Redis(unix_socket_path=str(server.socket))
        self.count = 0

    def put(self, count: int) -> None:
        for _ in range(count):
            self._client.xadd("in", {"d": json.dumps({"n": self.count})})
            self.count += 1

    def left(self) -> int:
        return int(self._client.xlen("in"))

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def broker(own_redis: RedisServer, quick: Path, monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.05")
    forget()
    return Forgetful(own_redis)


@pytest.fixture
def queue(redis_server: RedisServer) -> Iterator[Queue]:
    made = Queue(redis_server)
    yield made
    made.close()


def pipeline(queue: Queue, ack_on: str = "stored", retention: str = "24h") -> str:
    return QUEUE.replace("URL", queue.url).replace("ACK_ON", ack_on).replace("RETENTION", retention)


def numbers(home: Path, name: str = "out.jsonl") -> list[int]:
    return [row["n"] for row in payloads(home / name)]


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
    broker.redis.hset(broker.keys.lease("seal"), "token", str(int((broker.now() + 3600) * 1e6)))
    # When something is delivered
    rows = events(quick / "data", 20)
    drive()
    # Then its files are collected
    assert payloads(quick / "out/a.jsonl") == rows
    assert broker.numbers("sealed", "collected") == [1, 1]
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
        context.broker.acquire("acks.in", "somebody") as lease,
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
        deliver_destination(
            context, "a", died, run="one", wait=5.0, drain_limit=5.0, cleared=False, progress=lambda **_: None
        )
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
        lease = context.broker.acquire("destinations.a", context.owner, ttl=60.0)
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


@pytest.mark.proves("X7", "C10", "T1")
@pytest.mark.parametrize("ack_on", ["stored", "delivered"])
def test_an_older_copy_of_redis_is_noticed_and_brought_up_to_date(
    quick: Path, broker: Forgetful, queue: Queue, ack_on: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a copy of the append-only file, after which three micro-batches were told and delivered; files are kept
    write_pipeline(quick, "p", pipeline(queue, ack_on))
    queue.put(7)
    drive()
    copy = broker.log()
    for _ in range(3):
        queue.put(5)
        drive()
    # When the copy is put back
    broker.put_back(copy)
    queue.put(5)
    drive()
    # Then what was delivered stays so, and what came since is delivered
    assert numbers(quick) == list(range(queue.count))
    assert queue.left() == 0
    assert "Redis has forgotten that" in caplog.text
    account()


@pytest.mark.proves("X7", "I4")
def test_of_two_runs_that_notice_one_brings_the_state_back(
    quick: Path, broker: Forgetful, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given a Redis that has forgotten something, and two runs that look at the spool at once
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 5)
    drive()
    early = broker.log()
    rows = [*payloads(quick / "out/a.jsonl"), *events(quick / "data", 5, 5)]
    drive()
    broker.put_back(early)
    both, write = threading.Barrier(2), rebuild._write
    look = forgotten.forgotten

    def together(context: Any, marks: Any) -> str:
        said = look(context, marks)
        if said and not both.broken:
            with suppress(threading.BrokenBarrierError):
                both.wait(5)
                both.abort()
        return said

    def slow(*args: Any, **more: Any) -> None:
        write(*args, **more)
        time.sleep(0.5)  # longer than the lease lasts without renewal

    monkeypatch.setattr(forgotten, "forgotten", together)
    monkeypatch.setattr(rebuild, "_write", slow)

    def notice(run: str) -> bool:
        with opened("p", run) as context:
            return forgotten.remember(context)

    with ThreadPoolExecutor(2) as pool:
        # Then neither fails, and one of them did it
        assert list(pool.map(notice, ("one", "two"))) == [True, True]
    assert caplog.text.count("Redis has forgotten that") == 1
    drive()
    assert payloads(quick / "out/a.jsonl") == rows
    account()


@pytest.mark.proves("X7", "C10")
def test_an_older_copy_is_brought_up_to_date_while_a_destination_is_behind(
    quick: Path, broker: Forgetful, queue: Queue
) -> None:
    # Given messages that were acked when they were stored, and a destination that could not be written since
    write_pipeline(quick, "p", pipeline(queue))
    queue.put(5)
    drive()
    copy = broker.log()
    target = quick / "out.jsonl"
    target.rename(quick / "aside")
    target.mkdir()
    for _ in range(3):
        queue.put(5)
        run_once("p")
    assert queue.left() == 0
    # When the copy is put back, and then the destination is mended
    broker.put_back(copy)
    target.rmdir()
    (quick / "aside").rename(target)
    drive()
    # Then nothing is missing
    assert numbers(quick) == list(range(20))
    account()


@pytest.mark.proves("X7", "C10")
def test_a_manifest_that_redis_never_opened_is_taken_for_sealed(quick: Path, broker: Forgetful) -> None:
    # Given a micro-batch that nobody was told of, sealed under a number that Redis then gives again
    write_pipeline(quick, "p", MINUTES)
    rows = events(quick / "data", 20)
    drive()
    early = broker.log()
    rows += events(quick / "data", 20, 20)
    plan_run("p", "r")
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    sealed = state("p").latest_sealed()
    # When Redis forgets that it was opened
    broker.put_back(early)
    # Then it is sealed all the same, and no other is under its number
    plan_run("p", "r")
    assert state("p").latest_sealed() == sealed
    drive()
    assert payloads(quick / "out/a.jsonl") == rows


@pytest.mark.proves("X7")
@pytest.mark.parametrize(
    ("sealed", "proved", "believed"), [({5: 90, 9: 90}, 4, 9), ({5: 90, 8: 110}, 4, 4), ({3: 110}, 2, 2), ({}, 4, 9)]
)
def test_an_intent_is_believed_whole_or_not_at_all(sealed: dict[int, int], proved: int, believed: int) -> None:
    # Given a source that was told up to 4 and was about to be told up to 9, at 100; number → token of what is sealed
    mark = Mark("acks.in", 1, 100, 4, {"ack": {"m": "4", "from": "5", "to": "9"}})
    assert (covers(mark, sealed), trusted(mark, sealed)) == (proved, believed)


@pytest.mark.proves("X7")
def test_a_destination_that_joined_and_got_nothing_yet_is_not_given_what_was_before_it(
    quick: Path, broker: Forgetful
) -> None:
    # Given a destination that is added when one micro-batch is delivered and kept
    write_pipeline(quick, "p", MINUTES)
    rows = events(quick / "data", 5)
    drive()
    b = "      - {id: b, type: destination, plugin: file, settings: {path: out/b.jsonl, format: payload}}\n"
    write_pipeline(quick, "p", MINUTES + b)
    drive()
    early = broker.log()
    # When Redis forgets what came since
    new = events(quick / "data", 5, 5)
    run_once("p")
    broker.put_back(early)
    mark = next((quick / ".conduit/spool/p/checkpoint").glob("destinations.b-*"))
    mark.unlink()  # as where it was down
    drive()
    # Then it goes on where it joined
    assert payloads(quick / "out/a.jsonl") == rows + new
    assert payloads(quick / "out/b.jsonl") == new
    account()


@pytest.mark.proves("X7")
def test_a_micro_batch_that_lost_its_only_source_does_not_stand_in_the_way_of_a_rebuild(
    quick: Path, redis_server: RedisServer
) -> None:
    # Given a micro-batch that is open while its source leaves the file, so that it ends empty
    write_pipeline(quick, "p", MINUTES)
    events(quick / "data", 5)
    assert plan_run("p", "r").micro_batch == 1
    write_pipeline(quick, "p", MINUTES.replace("id: in,", "id: other,"))
    drive()
    assert state("p").latest_sealed() > 1
    assert state("p").micro_batch(1).manifest
    rows = payloads(quick / "out/a.jsonl")
    assert len(rows) == 5
    # When Redis is lost
    redis_server.flush()
    done = CliRunner().invoke(app, ["broker", "rebuild", "p"])
    # Then its state comes back
    assert done.exit_code == 0, done.exception
    rows += events(quick / "data", 5, 5)
    drive()
    assert payloads(quick / "out/a.jsonl") == rows
