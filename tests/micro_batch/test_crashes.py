"""A crash between any two broker or spool operations: the next runs go on; files hold every record once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.micro_batch.endings import OPERATIONS, Crash, crash_at, ends_of, home_of
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import PROCESSED, events


@pytest.mark.proves("C10", "C11", "C12", "O3", "T1", "I1", "I5", "I6")
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_at_any_operation_loses_nothing_and_repeats_nothing_in_files(
    home: Path, redis_server: Any, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.05")
    quick = PROCESSED.replace("max-records: 1000", "max-records: 20")
    quick = quick.replace(
        "        plugin: file\n        settings: {path: out",
        "        delivery: {timeout: 100ms}\n        plugin: file\n        settings: {path: out",
    )

    def begin(number: int) -> tuple[Path, list[dict[str, Any]]]:
        redis_server.flush()
        this = home_of(home, number, monkeypatch.setenv)
        write_pipeline(this, "p", quick)
        return this, events(this / "data", "a.jsonl", 0, 30)

    def live() -> None:
        for run in range(4):
            run_once("p", f"first-{run}")

    begin(0)
    with monkeypatch.context() as patch:
        ends = ends_of(patch, OPERATIONS, after)
        live()
    for number in ends():
        this, rows = begin(number)
        with monkeypatch.context() as patch, suppress(Crash):
            crash_at(patch, OPERATIONS, number, after)
            live()
        run_until_quiet("p")
        kept = [r for r in rows if r["colour"] != "green" and r["n"] != 7]
        assert payloads(this / "out/all.jsonl") == [{"n": r["n"]} for r in kept], f"operation {number}"
        assert payloads(this / "out/red.jsonl") == [r for r in kept if r["colour"] == "red"], f"operation {number}"
        broker = state("p")
        assert broker.positions.acked("in") == broker.positions.planned("in")
        assert broker.deliveries.get("all").counters["delivered"] == len(kept), f"operation {number}"
        broker.close()
    assert len(ends()) >= (20 if after else 40), "the crashes cover the whole life of two micro-batches"
