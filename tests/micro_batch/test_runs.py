"""What Redis keeps of runs is the same after a day as after an hour, and a run of this morning can be sent again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.state import Stage
from conduit_tasks.connectors.base import Slice
from conduit_tasks.errors import ConduitError
from conduit_tasks.micro_batch import runs
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.spool.names import renamed
from tests.micro_batch.harness import deliver_again, lines, run_once, state, write_pipeline
from tests.micro_batch.test_whole import TWO, events

DAY = 480
"""Runs, one every three minutes."""


def size(broker: Broker) -> tuple[int, int]:
    """Keys, and their bytes as Redis counts them."""
    keys = list(broker.redis.scan_iter(broker.keys.prefix + "*", count=1000))
    return len(keys), sum(broker.read(*(("MEMORY", "USAGE", key, "SAMPLES", "0") for key in keys)))


def busy(context: Context, run: str) -> None:
    """What one run tells the broker, of one micro-batch, to the end of its life."""
    broker = context.broker
    at = broker.latest_sealed()
    piece = Slice("data/a.jsonl", "", {"offset": at * 10, "crc": 1}, {"offset": at * 10 + 10, "crc": 1}, records=10)
    m = broker.open({"in": [piece]}, "config", at + 1)
    with broker.acquire("sources.in", run) as lease:
        broker.stage("sources.in", m, lease.token, Stage("stage", [10], 10))
    with broker.acquire("seal", run) as lease:
        broker.seal(m, lease.token, manifest="m", total=10, bytes=10, matched={"all": 10, "red": 0})
    with broker.acquire("destinations.all", run) as lease:
        broker.confirm("all", m, lease.token, [(0, 9)], {"matched": 10}, run=run, retention=86_400.0)
        runs.finish(context, "all", run)
    broker.complete_unmatched("red")
    ack = broker.begin_ack("in", ["all", "red"], "delivered")
    assert ack is not None
    broker.commit_ack("in", ack)
    for n in broker.collectable(["in"], ["all", "red"], 0):
        broker.begin_collect(n)
        broker.end_collect(n)


def test_a_day_of_busy_runs_leaves_redis_as_an_hour_does(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    (home / "data").mkdir()
    sizes: list[tuple[int, int]] = []
    with opened("p", "test") as context:
        for n in range(DAY):
            busy(context, f"scheduled__2026-11-21T{n // 20:02d}:{n % 20 * 3:02d}:00+00:00")
            if n + 1 in (runs.HELD, DAY // 2, DAY):
                sizes.append(size(context.broker))
        assert all(keys <= sizes[0][0] for keys, _ in sizes), sizes
        assert all(used <= sizes[0][1] + 256 for _, used in sizes), sizes
        # And every one of them is known, the first as the last
        for run in ("scheduled__2026-11-21T00:00:00+00:00", "scheduled__2026-11-21T23:57:00+00:00"):
            assert runs.finished(context, "all", run)
        assert not runs.finished(context, "all", "never")
        assert not runs.finished(context, "red", "scheduled__2026-11-21T00:00:00+00:00")
        renamed(context.spool, "p", "all", "every")
        assert runs.finished(context, "every", "scheduled__2026-11-21T01:00:00+00:00"), "it was called so then"


def test_a_day_of_idle_runs_leaves_nothing_in_redis(home: Path) -> None:
    write_pipeline(home, "p", TWO)
    events(home / "data", "a.jsonl", 0, 10)
    run_once("p", "first")
    plan_run("p", "settled")
    broker = state("p")
    before = size(broker)
    for n in range(DAY // 12):
        assert not plan_run("p", f"idle-{n}").work
    keys, used = size(broker)
    assert (keys, used <= before[1] + 64) == (before[0], True), "a number gains a digit, nothing else"
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
    assert len(broker.hash(broker.keys.runs("all"))) <= 2
    assert not broker.finished("all", "run-0")
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
            context.broker.redeliver("all", "run-0")
        context.broker.forget_runs("all", ["run-0"])
        monkeypatch.setattr(runs, "TOLD", 0)
        for n in range(2, 4):
            busy(context, f"run-{n}")
        assert not runs.finished(context, "all", "run-0")
