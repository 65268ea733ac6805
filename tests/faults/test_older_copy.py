"""An older copy of Redis is put back, or it lost everything: its state is brought up to date (SEMANTICS X7, T2)."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.micro_batch import forgotten, rebuild
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.settings import forget
from conduit_tasks.spool.checkpoint import Mark, covers, trusted
from tests.faults.forgetful import MINUTES, Forgetful, Queue, broker, numbers, pipeline, queue
from tests.faults.parts import account, drive, events
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.redis_server import RedisServer

__all__ = ["broker", "queue"]


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
    # A lease that is renewed in time also where this process stands still for a moment
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "3")
    forget()
    both, write = threading.Barrier(2), rebuild._write
    look = forgotten.forgotten

    def together(context: Any, marks: Any) -> str:
        said = look(context, marks)
        if said and not both.broken:
            with suppress(threading.BrokenBarrierError):
                both.wait(120)
                both.abort()
        return said

    def slow(*args: Any, **more: Any) -> None:
        write(*args, **more)
        time.sleep(4.0)  # longer than the lease lasts without renewal

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
    # When the copy is put back, and then the destination is fixed
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
    sealed = state("p").micro_batches.latest_sealed()
    # When Redis forgets that it was opened
    broker.put_back(early)
    # Then it is sealed all the same, and no other is under its number
    plan_run("p", "r")
    assert state("p").micro_batches.latest_sealed() == sealed
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
    assert state("p").micro_batches.latest_sealed() > 1
    assert state("p").micro_batches.get(1).manifest
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
