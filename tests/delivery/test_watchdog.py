"""Deliveries that wait for something without an end, in processes of their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks import topology
from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.connectors.file.destination import FileDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery import watchdog
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import Unavailable
from conduit_tasks.exit_codes import WAITING
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Tape, Target, work_of
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline

FOREVER = 3600.0


class Ended(FakePort):
    """Notes in a file why the process ended, which ends before it could tell."""

    note: Path

    def give_up(self, error: str) -> None:
        self.note.write_text(error)


def given_up(folder: Path, deliver_to: Callable[[FakePort], Any]) -> str:
    """Why the process of this delivery was ended."""
    port = Ended(10, list(range(10)))
    port.note = folder / "why"
    with pytest.raises(ChildDied, match=f"exit code {WAITING}"):
        in_child(lambda: deliver_to(port) and None)
    return port.note.read_text()


@pytest.mark.proves("T5", "C17")
def test_a_bulk_write_that_hangs_is_ended_at_its_timeout(tmp_path: Path) -> None:
    class Hanging(Tape):
        def write(self, rows: Rows) -> dict[str, Any] | None:
            time.sleep(FOREVER)
            return None

    said = given_up(tmp_path, lambda port: deliver(work_of(port), Hanging(), port, Delivery(bulk_timeout=0.3)))
    assert "destinations.d: a write of 10 rows (delivery.timeout 0.3 s) has not ended in time" in said


@pytest.mark.proves("T5", "C8")
@pytest.mark.parametrize("where", ["send", "close"])
def test_a_record_wise_delivery_without_progress_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Stuck(Target):
        async def send(self, record: Record) -> Outcome:
            return await self.forever() if where == "send" else DELIVERED

        async def close(self) -> None:
            if where == "close":
                await self.forever()

        async def forever(self) -> Outcome:
            while True:  # a library that does not let itself be given up
                try:
                    await asyncio.sleep(FOREVER)
                except asyncio.CancelledError:
                    continue

    monkeypatch.setattr(watchdog, "STALLED", 0.5)
    said = given_up(tmp_path, lambda port: deliver(work_of(port), Stuck(), port, Delivery(timeout=0.1)))
    assert "destinations.d: no progress for" in said


@pytest.mark.proves("T5", "T7")
def test_slow_deliveries_that_progress_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each record takes a while, and all of them longer than one may, which is longer than this machine stands still
    monkeypatch.setattr(watchdog, "longest", lambda _: 6.0)
    port = FakePort(40, list(range(40)))
    target = Target()
    target.pause = lambda seq: 0.2
    report = in_child(deliver, work_of(port), target, port, Delivery(timeout=60.0))
    assert report.counts.delivered == 40
    assert report.seconds > 6.0


@pytest.mark.proves("T5", "C10")
def test_a_destination_that_hangs_is_waited_for_and_no_record_is_blamed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination whose write never ends, and executors that are processes
    write_pipeline(
        home,
        "p",
        """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: to, type: destination, plugin: file, settings: {path: out/a.jsonl}, delivery: {timeout: 300ms}}
""",
    )
    (home / "data").mkdir()
    (home / "data" / "a.jsonl").write_text('{"n": 1}\n' * 20)

    def executors(function: Callable[[Any], Any], pieces: Sequence[Any]) -> list[Any]:
        return [in_child(function, piece) for piece in pieces]

    with monkeypatch.context() as hanging:
        hanging.setattr(topology, "LEAST_BULK_TIMEOUT", 0.3)
        hanging.setattr(FileDestination, "write", lambda *_: time.sleep(FOREVER))
        # When it is tried more often than records are blamed for
        for n in range(5):
            said = run_once("p", f"run-{n}", executors)["destinations.to"]
            # Then it is down each time, and says why
            assert isinstance(said, Unavailable)
            assert "has not ended in time" in str(said)
    # And once it writes again, it has everything, at once and without a dead letter
    run_once("p", "after", executors)
    assert len(payloads(home / "out" / "a.jsonl")) == 20
    broker = state("p")
    assert broker.deliveries.get("to").counters["nacked"] == 0
    broker.close()
