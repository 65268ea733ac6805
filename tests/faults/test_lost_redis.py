"""Redis lost altogether, or brought back as it was before: what the spool proves is not forgotten (SEMANTICS X7)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.broker.backlogs import beyond
from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError, SpoolError, StateLost, Unavailable
from conduit_tasks.micro_batch import rebuild
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.settings import forget
from tests.faults.forgetful import Forgetful, broker
from tests.faults.parts import Receiver, account, drive, events
from tests.micro_batch.endings import OPERATIONS, Crash, crash_at
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline
from tests.redis_server import RedisServer

__all__ = ["broker"]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 100}
    lag-budget: {records: 1000}
    isolate: true
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 5s, max-unconfirmed: 8, order-by: key}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""
FILES = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 20}
    spool: {retention: 0s}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: a, type: destination, plugin: file, settings: {path: out/a.jsonl, format: payload}}
      - {id: b, type: destination, plugin: file, settings: {path: out/b.jsonl, format: payload}}
"""


def conduit(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def behind(quick: Path, receiver: Receiver) -> list[dict[str, Any]]:
    """One destination two micro-batches behind, one up to date, a micro-batch that is not sealed; what was read."""
    write_pipeline(quick, "p", PIPELINE.replace("URL", receiver.url))
    rows = events(quick / "data", 100)
    run_once("p")
    receiver.mode("down")
    for _ in range(2):
        rows += events(quick / "data", 100, len(rows))
        assert isinstance(run_once("p")["destinations.web"], Unavailable)
    rows += events(quick / "data", 50, len(rows))
    assert plan_run("p", "unsealed").micro_batch == 4
    with opened("p", "unsealed") as context:
        context.spool.writer("p", 4, "sources.in", 1).part(0).close()
    receiver.mode("up")
    return rows


@pytest.mark.proves("X7")
def test_commands_that_show_or_set_the_state_of_a_lost_redis_say_that_it_is_lost(
    quick: Path, redis_server: RedisServer
) -> None:
    # Given a pipeline that has not run yet, then one that has, whose Redis is lost
    write_pipeline(quick, "p", FILES)
    assert (conduit("status", "p").exit_code, conduit("positions", "p").exit_code) == (0, 0)
    events(quick / "data", 10)
    drive()
    assert conduit("status", "p").exit_code == 0
    redis_server.flush()
    # Then what they say is no empty state
    shown = conduit("status", "p")
    assert shown.exit_code == 1
    assert "conduit broker rebuild p" in shown.output
    conduit("stop", "p")
    for words in ([], ["--source", "in", "--set", "x.jsonl=5"], ["--source", "in", "--set", "x.jsonl=5", "--dry-run"]):
        assert isinstance(conduit("positions", "p", *words).exception, StateLost), words
    assert state("p").positions.planned("in") == {}
    # And once it is rebuilt, they work
    assert conduit("broker", "rebuild", "p").exit_code == 0
    assert conduit("status", "p").exit_code == 0
    assert "x.jsonl" not in conduit("positions", "p").output
    account()


@pytest.mark.proves("X7")
def test_a_destination_is_as_far_behind_after_a_rebuild_as_before(
    behind: list[dict[str, Any]], redis_server: RedisServer
) -> None:
    def backlogs() -> list[tuple[int, int, int]]:
        found = beyond(state("p").access, 3, [0, 1, 2, 3])
        return [(each.micro_batches, each.records, each.bytes) for each in found]

    before = backlogs()
    assert [records for _, records, _ in before] == [300, 200, 100, 0]
    redis_server.flush()
    assert conduit("broker", "rebuild", "p").exit_code == 0
    assert backlogs() == before
    broker = state("p")
    assert broker.access.field(broker.keys.micro_batch(3), "upto") == str(broker.micro_batches.totals()["read"])


@pytest.mark.proves("X7")
def test_positions_are_not_set_in_a_redis_that_has_forgotten(quick: Path, broker: Forgetful) -> None:
    # Given a Redis that forgets the last micro-batch
    write_pipeline(quick, "p", FILES)
    events(quick / "data", 10)
    drive()
    early = broker.log()
    events(quick / "data", 10, 10)
    drive()
    planned = state("p").positions.planned("in")
    broker.put_back(early)
    conduit("stop", "p", "--force")
    # When the position of another part is set
    [part] = planned
    done = conduit("positions", "p", "--source", "in", "--forget", part)
    # Then the state was brought back first
    assert done.exit_code == 0, done.exception
    assert str(planned[part]["offset"]) in done.output


@pytest.mark.proves("X7", "C9", "C10", "C12")
def test_a_lost_redis_is_noticed_and_rebuilt_from_the_spool_and_nothing_is_lost(
    quick: Path, receiver: Receiver, redis_server: RedisServer, behind: list[dict[str, Any]], acks: list[dict[str, Any]]
) -> None:
    # Given destinations at different cursors, and Redis empty
    before = state("p")
    position, index = before.positions.acked("in"), before.access.hash(before.keys.index("in"))
    (held,) = before.access.numbers("held")
    assert held > 0
    redis_server.flush()
    # Then nothing is planned, read or delivered, and what to do is said
    with pytest.raises(StateLost, match="conduit broker rebuild p"):
        plan_run("p", "r")
    # When it is tried, then nothing has changed
    done = conduit("broker", "rebuild", "p", "--dry-run")
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.output.splitlines()[1:4]] == [
        ["destinations.web", "1"],
        ["destinations.file", "3"],
        ["acks.in", "1"],
    ]
    assert "micro-batches 1 to 3, 300 records; not sealed, and read again: 4" in done.output
    with pytest.raises(StateLost):
        plan_run("p", "r")
    # When it is rebuilt
    assert conduit("broker", "rebuild", "p").exit_code == 0
    # Then cursors, position, indexes and counters are back
    broker = state("p")
    assert [broker.deliveries.get(d).cursor for d in ("web", "file")] == [1, 3]
    assert (broker.micro_batches.latest_sealed(), broker.micro_batches.unsealed()) == (3, None)
    assert broker.positions.acked("in") == position
    assert broker.access.hash(broker.keys.index("in")) == index
    assert broker.access.numbers("held", "held_from") == [held, 1]
    assert broker.deliveries.get("file").counters["delivered"] == 300
    # And the next runs go on: each event once in the file, none missing or out of order over HTTP
    drive()
    assert payloads(quick / "out/file.jsonl") == behind
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (350, 0, 0)
    found = account()
    assert [d["delivered"] for d in found["destinations"].values()] == [350, 350]
    assert broker.positions.acked("in") == broker.positions.planned("in")
    assert acks
    broker.close()


@pytest.mark.proves("X7", "I4")
def test_state_that_is_there_is_replaced_only_on_request_and_its_holders_are_fenced(
    quick: Path, behind: list[dict[str, Any]]
) -> None:
    broker = state("p")
    lease = broker.leases.acquire("destinations.web", "somebody")
    done = conduit("broker", "rebuild", "p")
    assert isinstance(done.exception, ConfigError)
    assert "--replace" in str(done.exception)
    lease.renew()
    assert conduit("broker", "rebuild", "p", "--replace").exit_code == 0
    from conduit_tasks.errors import Fenced

    with pytest.raises(Fenced):
        lease.renew()
    assert broker.leases.acquire("destinations.web", "another").token > lease.token
    broker.close()


@pytest.mark.proves("X7", "I6")
@pytest.mark.parametrize("harm", ["manifest gone", "manifest broken", "data gone", "mark broken"])
def test_what_cannot_be_read_is_refused_with_its_name(
    quick: Path, redis_server: RedisServer, behind: list[dict[str, Any]], harm: str
) -> None:
    # Given a micro-batch that a destination still needs, or a mark, that somebody has touched
    folder = quick / ".conduit/spool/p/0000000002"
    manifest, data = next(folder.glob("manifest-*.json")), next(folder.glob("*/*.parquet"))
    mark = next((quick / ".conduit/spool/p/checkpoint").glob("destinations.web-*.json"))
    name = {"manifest gone": folder, "manifest broken": manifest, "data gone": data, "mark broken": mark}[harm]
    if harm.endswith("gone"):
        (data if harm == "data gone" else manifest).unlink()
    else:
        name.write_text("{}")
    redis_server.flush()
    # When a rebuild is tried, then the file is named, and Redis stays as it is
    done = conduit("broker", "rebuild", "p")
    assert isinstance(done.exception, SpoolError)
    assert str(name) in str(done.exception)
    assert "restore" in str(done.exception)
    assert not rebuild.holds_state(state("p"))


def test_a_new_pipeline_has_nothing_to_rebuild_and_just_begins(quick: Path, redis_server: RedisServer) -> None:
    write_pipeline(quick, "p", FILES)
    assert "it begins again" in conduit("broker", "rebuild", "p").output
    rows = events(quick / "data", 5)
    # An abandoned, never sealed micro-batch proves nothing either
    plan_run("p", "r")
    with opened("p", "r") as context:
        context.spool.writer("p", 1, "sources.in", 1).part(0).close()
    redis_server.flush()
    drive()
    assert payloads(quick / "out/a.jsonl") == rows


@pytest.mark.proves("X7", "C9", "C10", "I6")
@pytest.mark.parametrize("after", [False, True])
def test_redis_lost_at_any_operation_loses_nothing_and_keeps_the_order(
    home: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.05")
    number, rebuilt = 2 if after else 1, 0
    while True:
        this = home / str(number)
        (this / "include/pipelines").mkdir(parents=True)
        monkeypatch.setenv("CONDUIT_HOME", str(this))
        forget()
        redis_server.flush()
        write_pipeline(this, "p", FILES)
        rows = events(this / "data", 50)
        # Given a crash at some operation of the life of three micro-batches, which takes Redis with it
        with monkeypatch.context() as patch:
            counted = crash_at(patch, OPERATIONS, number, after)
            try:
                for run in range(5):
                    run_once("p", f"first-{run}")
            except Crash:
                pass
            if counted() < number:
                break
        redis_server.flush()
        # When its state is rebuilt, where the spool knows of any
        try:
            plan_run("p", "look")
        except StateLost:
            rebuilt += 1
            with opened("p", "rebuild") as context:
                found = rebuild.from_spool(context.pipeline, context.spool, context.broker)
                rebuild.apply(context.broker, found, replace=False)
        rows += events(this / "data", 10, 50)
        drive()
        # Then every record is in both files, in order; at most what no mark knew of comes twice
        for name in ("a", "b"):
            got = [row["n"] for row in payloads(this / f"out/{name}.jsonl")]
            assert list(dict.fromkeys(got)) == list(range(60)), f"operation {number}: {name}"
            assert len(got) <= 80, f"operation {number}: more than one micro-batch came again"
        found_now = account()
        assert found_now["status"] == "running"
        number += 6
    assert rebuilt > 3


@pytest.mark.proves("X7", "C10", "I6", "T1")
def test_a_redis_that_forgot_that_collected_files_were_delivered_goes_on_by_itself(
    own_redis: RedisServer, quick: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Given files that are collected as soon as they are delivered, and Redis's log as it was at several moments
    monkeypatch.setenv("CONDUIT_REDIS_URL", own_redis.url)
    forget()
    write_pipeline(quick, "p", FILES)
    rows = events(quick / "data", 20)
    drive()
    redis = Forgetful(own_redis)
    early = redis.log()
    rows += events(quick / "data", 40, 20)
    run_once("p")
    middle = redis.log()
    drive()
    late = redis.log()
    assert not list((quick / ".conduit/spool/p").glob("0*")), "everything is collected"
    cuts: list[Callable[[], bytes]] = [
        lambda: early,
        lambda: middle[: (len(early) + len(middle)) // 2],
        lambda: middle[: len(middle) - 200],
        lambda: late[: (len(middle) + len(late)) // 2],
    ]
    for cut in cuts:
        # When a crash of the machine takes Redis back to there, while the files stay collected
        redis.put_back(cut())
        rows += events(quick / "data", 20, len(rows))
        drive()
        # Then nothing is missing or twice, and nobody had to do anything
        assert payloads(quick / "out/a.jsonl") == rows
        assert payloads(quick / "out/b.jsonl") == rows
        account()
    assert "rebuilt from the spool" in caplog.text
