"""What Redis keeps of runs is the same after hours as after half of them, and the first run can be sent again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.state import Stage
from conduit_tasks.connectors.base import Slice
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch import collection, runs
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.plan import plan, plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.spool.names import renamed
from tests.micro_batch.harness import deliver_again, here, lines, look, run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events

RUNS = 480
"""One a minute: after two hours, the longest that something is kept, none is new."""
PERIOD = runs.HELD // 2 + 1
"""Runs after which some go to the spool."""
HALF, WHOLE = RUNS // 2 // PERIOD * PERIOD, RUNS // PERIOD * PERIOD
"""Runs between which nothing but a few digits may change."""


def size(broker: Broker) -> tuple[int, int]:
    """Keys, and their bytes as Redis counts them, but for the rolling series: they follow the time (`test_series`)."""
    keys = list(broker.redis.scan_iter(broker.keys.prefix + "*", count=1000))
    keys = [key for key in keys if not key.startswith(broker.keys.series(""))]
    return len(keys), sum(broker.access.read(*(("MEMORY", "USAGE", key, "SAMPLES", "0") for key in keys)))


def busy(context: Context, run: str, retention: float = 0.0) -> None:
    """What one run tells the broker, of one micro-batch, to the end of its life; what is kept for `retention` is as
    old as a server's clock says that is an hour ahead for each 60 runs."""
    broker = context.broker
    at = broker.micro_batches.latest_sealed()
    piece = Slice("data/a.jsonl", "", {"offset": at * 10, "crc": 1}, {"offset": at * 10 + 10, "crc": 1}, records=10)
    m = broker.micro_batches.open({"in": [piece]}, "config", at + 1)
    with broker.leases.acquire("sources.in", run) as lease:
        stage = Stage("p/0000000001/sources.in-1795318723577820.json", [10], 10, matched={"all": 10, "red": 0})
        broker.micro_batches.stage("sources.in", m, lease.token, stage)
    with broker.leases.acquire("seal", run) as lease:
        manifest = f"p/{m:010d}/manifest-{lease.token}.json"
        broker.micro_batches.seal(m, lease.token, manifest=manifest, total=10, bytes=10, matched={"all": 10, "red": 0})
    with broker.leases.acquire("destinations.all", run) as lease:
        broker.deliveries.confirm("all", m, lease.token, [(0, 9)], {"matched": 10}, run=run, retention=86_400.0)
        runs.finish(context, "all", run)
    broker.deliveries.complete_unmatched("red")
    ack = broker.acks.begin("in", ["all", "red"], "delivered")
    assert ack is not None
    broker.acks.commit("in", ack)
    if retention:
        # The same clock for all: what this run sealed is a minute younger than what the last one did.
        sealed = broker.keys.micro_batch(m)
        broker.redis.hset(sealed, "sealed_at", str(int((broker.access.now() - 2 * 86_400 + m * 60) * 1e6)))
        ahead = 2 * 86_400 - m * 60
        broker.collection.slim(["in"], ["all", "red"], 3_600 + ahead)
    for n in broker.collection.due(["in"], ["all", "red"], retention and retention + ahead):
        broker.collection.begin(n)
        broker.collection.end(n)


def named(n: int) -> str:
    return f"scheduled__2026-11-21T{n // 60:02d}:{n % 60:02d}:00+00:00"


@pytest.mark.parametrize("retention", [0.0, 2 * 3_600.0])
def test_busy_runs_leave_redis_as_half_of_them_do(home: Path, retention: float) -> None:
    """Given a micro-batch a minute, then Redis holds after hours what it held after half of them, a few digits aside;
    with a `spool.retention` of two hours that is 120 micro-batches, of which those older than an hour are small."""
    write_pipeline(home, "p", TWO)
    (home / "data").mkdir()
    sizes: list[tuple[int, int]] = []
    with opened("p", "test") as context:
        for n in range(RUNS):
            busy(context, named(n), retention)
            if n + 1 in (HALF, WHOLE):
                sizes.append(size(context.broker))
        (half, used), (whole, after) = sizes
        kept = retention / 60
        assert whole == half, sizes
        assert after <= used + 256, sizes
        assert kept <= whole <= kept + runs.HELD + 30
        assert after < 16_000 + min(kept, 60) * 1_800 + max(kept - 60, 0) * 450, sizes
        # And every run is known, the first as the last
        for run in (named(0), named(RUNS - 1)):
            assert runs.finished(context, "all", run)
        assert not runs.finished(context, "all", "never")
        assert not runs.finished(context, "red", named(0))
        renamed(context.spool, "p", "all", "every")
        assert runs.finished(context, "every", named(60)), "it was called so then"


def test_idle_runs_leave_nothing_in_redis(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 10)
    run_once("p", "first")
    plan_run("p", "settled")
    broker = state("p")
    before = size(broker)
    with opened("p", "idle") as context:
        for _ in range(RUNS):
            assert not plan(context).work
    keys, used = size(broker)
    assert (keys, used <= before[1] + 64) == (before[0], True), "a number gains a digit, nothing else"
    broker.close()


def test_a_micro_batch_that_is_kept_small_is_sent_again_as_any_other(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given micro-batches that were delivered and acked some time ago, then a fraction of them is kept, and a task that
    is cleared sends what its run had delivered."""
    monkeypatch.setattr(collection, "SLIM_AFTER", 0.0)
    write_pipeline(home, "p", TWO)
    broker = state("p")
    sizes = []
    for n in range(3):
        events(home / "data", "a.jsonl", n * 10, 10)
        run_once("p", f"run-{n}")
        sizes.append(broker.redis.memory_usage(broker.keys.micro_batch(1), samples=0))
    assert "slices:in" not in broker.access.hash(broker.keys.micro_batch(3))
    assert sizes[-1] < 600, sizes
    sent = len(lines(home / "out/all.jsonl"))
    assert "delivered 1 micro-batches" in str(deliver_again("p", "all", "run-0"))
    assert len(lines(home / "out/all.jsonl")[sent:]) == 10
    assert broker.micro_batches.find(1).total == 10
    # What is not acked, or not delivered, is whole
    events(home / "data", "a.jsonl", 30, 10)
    plan_run("p", "planned")
    with opened("p", "planned") as context:
        read_source(context, "in", here, 5.0)
    broker.collection.slim(["in"], ["all", "red"], 0.0)
    assert broker.micro_batches.get(4).state == "sealed"
    assert broker.micro_batches.get(4).slices["in"]
    broker.close()


@pytest.mark.parametrize(("seconds", "small"), [(50.0, False), (70.0, True)])
def test_a_micro_batch_is_kept_small_a_minute_after_its_seal(home: Path, seconds: float, small: bool) -> None:
    """A stream seals several each second: an hour of whole ones takes tens of megabytes."""
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 10)
    run_once("p", "run")
    broker = state("p")
    sealed = broker.keys.micro_batch(1)
    broker.redis.hset(sealed, "sealed_at", str(int((broker.access.now() - seconds) * 1e6)))
    with opened("p", "acks") as context:
        assert collection.collect(context) == []
    assert ("slices:in" not in broker.access.hash(sealed)) is small
    broker.close()


def test_a_run_that_is_in_the_spool_by_now_is_sent_again_when_its_task_is_cleared(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "HELD", 2)
    write_pipeline(home, "p", TWO)
    for n in range(6):
        events(home / "data", "a.jsonl", n * 10, 10)
        run_once("p", f"run-{n}")
    broker = state("p")
    assert len(broker.access.hash(broker.keys.runs("all"))) <= 2
    assert not broker.redeliveries.run_finished("all", "run-0")
    sent = len(lines(home / "out/all.jsonl"))
    assert "delivered 1 micro-batches" in str(deliver_again("p", "all", "run-0"))
    again = [json.loads(line) for line in lines(home / "out/all.jsonl")[sent:]]
    assert len(again) == 10
    broker.close()


def test_what_is_past_its_retention_is_told_so_and_in_the_end_forgotten(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "HELD", 1)
    write_pipeline(home, "p", TWO)
    (home / "data").mkdir()
    with opened("p", "test") as context:
        for n in range(2):
            busy(context, f"run-{n}")
        assert runs.finished(context, "all", "run-0")
        with pytest.raises(ConduitError, match=r"is past spool\.retention"):
            context.broker.redeliveries.ranges("all", "run-0")
        context.broker.redeliveries.forget_runs("all", ["run-0"])
        monkeypatch.setattr(runs, "TOLD", 0)
        for n in range(2, 4):
            busy(context, f"run-{n}")
        assert not runs.finished(context, "all", "run-0")


@pytest.mark.proves("C10")
def test_what_an_executor_ended_after_its_driver_had_died_is_done_by_that_run_and_not_skipped(home: Path) -> None:
    # Given a destination that had everything confirmed in this run, by a driver that did not live to say so
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 10)
    run_once("p", "one")
    broker = state("p")
    broker.redis.delete(broker.keys.runs("all"))
    # When its task is tried again
    work = look("p", "destinations.all", "one")
    # Then it is done, and clearing it later sends again what this run delivered
    assert (work.submit, work.done) == (False, True)
    assert broker.redeliveries.run_finished("all", "one")
    # While a run that delivered nothing has nothing to do
    assert not look("p", "destinations.all", "two").done
    broker.close()
