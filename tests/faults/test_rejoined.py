"""A connector left the pipeline file and came back: its old mark in the spool is no reason to refuse or repeat (X7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.spool.checkpoint import Checkpoint
from conduit_tasks.spool.spool import Spool
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import account, drive, events
from tests.micro_batch.endings import Crash
from tests.micro_batch.harness import payloads, state, write_pipeline
from tests.redis_server import RedisServer

__all__ = ["broker"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    spool: {retention: 0s}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: other, type: source, plugin: file, settings: {path: "other/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: a, type: destination, plugin: file, settings: {path: out/a.jsonl, format: payload}}
      - {id: b, type: destination, plugin: file, settings: {path: out/b.jsonl, format: payload}}
"""


def without(id: str) -> str:
    return "".join(line for line in PIPELINE.splitlines(keepends=True) if f"id: {id}," not in line)


class Place:
    """The pipeline in a folder. `at`: what `a` is to hold, and `b`."""

    def __init__(self, home: Path) -> None:
        self.home, self.count = home, 0
        self.a: list[Any] = []
        self.b: list[Any] = []

    def file(self, leaves_out: str = "") -> None:
        write_pipeline(self.home, "p", without(leaves_out) if leaves_out else PIPELINE)

    def deliver(self, folder: str = "other", *, to_b: bool = True) -> None:
        rows = events(self.home / folder, 5, self.count)
        self.count += 5
        drive()
        self.a += rows
        self.b += rows if to_b else []

    def check(self) -> None:
        assert payloads(self.home / "out/a.jsonl") == self.a
        assert payloads(self.home / "out/b.jsonl") == self.b
        account()


@pytest.fixture
def away(quick: Path) -> Callable[[str], Place]:
    """Makes a place in which one connector has a mark, and left the file before others delivered and collected."""

    def make(leaves: str) -> Place:
        place = Place(quick)
        place.file()
        place.deliver("data")
        place.file(leaves)
        for _ in range(2):
            place.deliver(to_b=leaves != "b")
        assert not list((quick / ".conduit/spool/p").glob("0*")), "everything is collected"
        return place

    return make


@pytest.mark.proves("X7")
@pytest.mark.parametrize("lost", ["after it came back", "before"])
@pytest.mark.parametrize("id", ["b", "in"])
def test_a_lost_redis_is_rebuilt_though_a_connector_was_out_of_the_file(
    away: Callable[[str], Place], redis_server: RedisServer, id: str, lost: str
) -> None:
    # Given a destination, or a source, that comes back
    place = away(id)
    place.file()
    if lost == "after it came back":
        drive()
    # When Redis is lost before it has got anything
    redis_server.flush()
    done = CliRunner().invoke(app, ["broker", "rebuild", "p"])
    # Then the state comes back, and everybody goes on, it behind what was collected without it
    assert done.exit_code == 0, done.exception
    assert state("p").replays.joined("b") is None or id != "b"
    place.deliver("data")
    place.deliver()
    place.check()


@pytest.mark.proves("X7")
def test_a_mark_that_a_late_holder_writes_after_its_destination_left_asks_for_nothing_that_is_collected(
    quick: Path, redis_server: RedisServer
) -> None:
    # Given a destination that has left, and whose mark is written only after others delivered and collected
    place = Place(quick)
    place.file()
    place.deliver("data")
    marks = {path: path.read_bytes() for path in (quick / ".conduit/spool/p/checkpoint").glob("destinations.b-*")}
    assert marks
    for path in marks:
        path.unlink()
    place.file("b")
    for _ in range(2):
        place.deliver(to_b=False)
    for path, mark in marks.items():
        path.write_bytes(mark)
    # When it comes back, and Redis is lost
    place.file()
    redis_server.flush()
    done = CliRunner().invoke(app, ["broker", "rebuild", "p"])
    # Then it goes on behind what was collected
    assert done.exit_code == 0, done.exception
    place.deliver()
    place.check()


@pytest.mark.proves("X7")
def test_an_older_redis_is_brought_up_to_date_though_a_destination_was_out_of_the_file(
    broker: Forgetful, away: Callable[[str], Place], caplog: pytest.LogCaptureFixture
) -> None:
    # Given a destination that came back, and what Redis said before
    place = away("b")
    early = broker.log()
    place.deliver(to_b=False)
    place.file()
    drive()
    # When Redis forgets what was delivered and collected since
    broker.put_back(early)
    # Then the next run goes on by itself
    place.deliver()
    place.check()
    assert "Redis has forgotten that" in caplog.text


@pytest.mark.proves("X7", "I6")
def test_a_redis_that_forgot_what_was_collected_does_not_have_it_delivered_to_one_that_came_back(
    broker: Forgetful, quick: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given what Redis said when all was delivered, and nothing of it collected
    place, before, write = Place(quick), list[bytes](), Checkpoint.collecting
    place.file()
    place.deliver("data")
    place.file("b")
    monkeypatch.setattr(Checkpoint, "collecting", lambda *of: (before.append(broker.log()), write(*of)))
    place.deliver(to_b=False)
    # When it forgets the collection, and a destination comes back that was not there
    broker.put_back(before[-1])
    place.file()
    # Then that goes on behind what is gone
    place.deliver()
    place.check()
    assert "was collected while destinations.b was out of the file" in caplog.text


def test_what_is_collected_is_noted_only_while_somebody_may_come_back(quick: Path, redis_server: RedisServer) -> None:
    """Given all nodes in the file, whose marks say that they need nothing, then a collection writes nothing more."""
    place, noted = Place(quick), quick / ".conduit/spool/p/checkpoint"
    place.file()
    place.deliver("data")
    place.deliver()
    assert not list((quick / ".conduit/spool/p").glob("0*")), "everything is collected"
    assert not list(noted.glob("collected-*"))
    # When one is out of it, then it is noted how far files are gone
    place.file("b")
    place.deliver(to_b=False)
    assert [path.name for path in noted.glob("collected-*")] == ["collected-3.json"]
    # And a lost Redis is rebuilt for all of them
    place.file()
    redis_server.flush()
    assert CliRunner().invoke(app, ["broker", "rebuild", "p"]).exit_code == 0
    place.deliver()
    place.check()


@pytest.mark.proves("I6")
def test_a_destination_comes_back_behind_what_somebody_began_to_collect(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that left the file, and a task that dies with half a micro-batch removed
    place = Place(quick)
    place.file()
    place.deliver("data")
    place.file("b")

    def die(spool: Spool, pipeline: str, number: int) -> None:
        for data in Path(spool.root, spool.folder(pipeline, number)).glob("*/*.parquet"):
            data.unlink()
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "collect", die)
        with pytest.raises(Crash):
            place.deliver(to_b=False)
    place.a += payloads(quick / "other/a.jsonl")
    # When it comes back
    place.file()
    # Then it goes on behind that, and the collection ends
    place.deliver()
    place.check()
    assert not list((quick / ".conduit/spool/p").glob("0*"))
