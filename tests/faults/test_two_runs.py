"""Two runs of the same pipeline at once: every record once, and no micro-batch left behind between them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.leases import Lease
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.faults.parts import Receiver, account, drive, events, table
from tests.forked import Forked
from tests.micro_batch.harness import here, payloads, state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 50}
    lag-budget: {records: 200}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload},
         delivery: {timeout: 20s}}
      - {id: web, type: destination, plugin: http, settings: {url: "URL"},
         delivery: {timeout: 20s, max-unconfirmed: 8, order-by: key}}
      - {id: table, type: destination, plugin: sql, delivery: {timeout: 20s},
         settings: {url: "sqlite:///out/table.db", table: events, columns: "n:int=.Payload.After.n"}}
    processors: [{id: mark, plugin: field.set, settings: {field: .Metadata.seen, value: "yes"}}]
"""


def run_until_quiet(ready: Path) -> str:
    """Begins once the gate beside `ready` is gone. Returns what each run said."""
    ready.touch()
    while ready.with_name("gate").exists():
        time.sleep(0.005)
    return str(drive())


@pytest.mark.proves("C9", "C12", "T4", "I3", "I4", "I10")
def test_three_runs_at_once_deliver_every_record_once_and_in_order(home: Path, receiver: Receiver) -> None:
    # Given 12 micro-batches
    rows = events(home / "data", 600)
    write_pipeline(home, "p", PIPELINE.replace("URL", receiver.url))
    # When three processes run the pipeline at once, each until it finds nothing to do
    gate = home / "gate"
    gate.touch()
    ready = [home / f"ready-{n}" for n in range(3)]
    runs = [Forked(run_until_quiet, file) for file in ready]
    until(lambda: all(file.exists() for file in ready), "all of them to be ready")
    gate.unlink()
    said = [run.answer() for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0], said
    drive()
    # Then nothing is there twice, not even over HTTP: nobody was killed
    assert payloads(home / "out/file.jsonl") == rows
    assert table(home / "out/table.db") == [row["n"] for row in rows]
    seen = receiver.summary()
    assert (seen["accepted"], seen["duplicates"], seen["out_of_order"]) == (600, 0, 0)
    found = account()
    assert found["totals"]["read"] == 600
    assert [d["delivered"] for d in found["destinations"].values()] == [600] * 3
    assert sum("micro-batch" in text for text in said) >= 2, "more than one of them found work"


@pytest.mark.proves("C10", "C9")
def test_a_drain_that_ends_exactly_while_another_run_seals_leaves_no_micro_batch_behind(
    quick: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a drain that has delivered everything
    write_pipeline(quick, "p", PIPELINE.replace("URL", receiver.url).partition("    processors")[0])
    events(quick / "data", 50)
    release, left = Lease.release, iter((50, 100, 150))

    def seal_first(self: Lease, expect_sealed: int | None = None, **more: Any) -> bool:
        # Another run seals between its last look and its release.
        if expect_sealed is not None and (start := next(left, None)) is not None:
            events(quick / "data", 50, start)
            plan_run("p", "other")
            with opened("p", "other") as other:
                read_source(other, "in", here, 5.0)
        return release(self, expect_sealed, **more)

    plan_run("p", "first")
    with opened("p", "first") as context:
        read_source(context, "in", here, 5.0)
        monkeypatch.setattr(Lease, "release", seal_first)
        # When it releases its lease three times at just that moment
        deliver_destination(context, "file", here, run="first", wait=5.0, cleared=False, progress=lambda **_: None)
    # Then it noticed each time: no micro-batch is left for a run that may never come
    broker = state("p")
    assert broker.micro_batches.latest_sealed() == 4
    assert broker.deliveries.get("file").cursor == 4
    broker.close()
    assert [row["n"] for row in payloads(quick / "out/file.jsonl")] == list(range(200))
