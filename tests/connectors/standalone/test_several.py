"""Several tasks deliver by a standalone connector, each with a process of its own (ADR 43)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.errors import SpoolError, Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.sending import telling
from conduit_tasks.settings import forget
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.told import Told
from tests.connectors.standalone.test_breaking import alive
from tests.connectors.standalone.test_pipelines import noted
from tests.faults.beside import Beside
from tests.faults.parts import drive
from tests.faults.test_shards import deliver, sealed
from tests.micro_batch.harness import state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.txt", settle: 0s, partition-by: file}}
      - id: to
        type: destination
        plugin: PLUGIN
        settings: {SETTINGS}
        delivery: {backoff-delay: 10ms, retry: 2, parallelism: 3, order-by: ORDER}
"""
FILES, LINES, MESSAGE = 6, 200, 100


def written(home: Path, plugin: str, settings: str, order: str) -> None:
    text = PIPELINE.replace("PLUGIN", plugin).replace("SETTINGS", settings).replace("ORDER", order)
    write_pipeline(home, "p", text)


def lines(home: Path, first: int = 1) -> list[str]:
    """Lines `FILE LINE` in FILES files, each a partition; returns all of them, in order per file."""
    (home / "data").mkdir(exist_ok=True)
    made = []
    for number in range(first, first + FILES):
        some = [f"{number} {n}" for n in range(LINES)]
        (home / "data" / f"{number}.txt").write_text("".join(f"{line}\n" for line in some))
        made += some
    return made


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside(retries=2)
    yield made
    made.stop()


@pytest.fixture
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`home` with leases of two seconds."""
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "2")
    monkeypatch.setenv("CONDUIT_LEASE_GRACE", "0.1")
    forget()
    return home


def in_order(found: list[str]) -> bool:
    """Tells whether the lines of each file are in order, the first time that each came."""
    last: dict[str, int] = {}
    for line in dict.fromkeys(found):
        file, n = line.split()
        if int(n) < last.get(file, -1):
            return False
        last[file] = int(n)
    return True


@pytest.mark.proves("C9")
@pytest.mark.parametrize("order", ["partition", "none"])
def test_each_task_has_a_process_and_the_connector_is_told_once_of_its_life(
    home: Path, programs: Path, beside: Beside, order: str
) -> None:
    said, out = home / "notes", home / "out.txt"
    written(home, "standalone:counter", f"path: {out}, notes: {said}", order)
    # Given one that takes a while to hear that it is new, so that the others have come by then
    Path(f"{said}.slow").touch()
    all_lines = lines(home)
    drive(run_all=beside)
    # Then three processes were opened, and one of them was told that it is new
    assert beside.jobs == [[0, 1, 2]]
    assert (len(noted(said, "open")), noted(said, "created"), noted(said, "updated")) == (3, [""], [])
    assert sorted(out.read_text().splitlines()) == sorted(all_lines)
    assert order == "none" or in_order(out.read_text().splitlines())
    # And all of them were stopped in good order
    assert (len(noted(said, "stop")), len(noted(said, "teardown"))) == (3, 3)
    # When its settings have changed, one is told so
    written(home, "standalone:counter", f"path: {out}, notes: {said}, times: '7'", order)
    all_lines += lines(home, FILES + 1)
    drive(run_all=beside)
    assert (len(noted(said, "open")), noted(said, "created"), noted(said, "updated")) == (6, [""], [""])
    assert sorted(out.read_text().splitlines()) == sorted(all_lines)
    broker = state("p")
    delivered = broker.deliveries.get("to")
    broker.close()
    assert delivered.counters["delivered"] == len(all_lines)


def waiting(said: Path) -> list[int]:
    """Returns the ids of the connector's processes that stand before their second message."""
    return [int(pid) for pid in noted(said, "waits")] if said.exists() else []


@pytest.mark.proves("C10", "C17")
@pytest.mark.parametrize("killed", ["connector", "task"])
def test_a_connector_or_a_task_that_is_killed_in_the_middle_loses_nothing(
    quick: Path, programs: Path, beside: Beside, killed: str
) -> None:
    """Given three connectors in the middle of their shards, and one of them or its task killed, then that shard is
    delivered by a new process from what was acked, and the others are not touched."""
    said, out, go = quick / "notes", quick / "out.txt", quick / "go"
    settings = f"path: {out}, notes: {said}, wait: {go}, sdk.batch.size: '{MESSAGE}'"
    written(quick, "standalone:counter", settings, "partition")
    all_lines = lines(quick)
    sealed()

    def kill() -> None:
        until(lambda: len(waiting(said)) == 3, "three connectors in the middle")
        if killed == "connector":
            os.kill(waiting(said)[1], signal.SIGKILL)
        else:
            beside.processes[1][0].kill()
        until(lambda: sum(map(alive, waiting(said))) == 2, "the end of one connector")
        go.touch()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(kill)
        deliver(beside)
        done.result()
    found = out.read_text().splitlines()
    assert sorted(set(found)) == sorted(all_lines)
    assert in_order(found)
    # A task that lives knows what was acked; of one that was killed the message before comes again
    assert len(found) - len(all_lines) == (0 if killed == "connector" else MESSAGE)
    assert len(noted(said, "open")) == 4
    assert noted(said, "created") == [""]
    assert [len(beside.processes[n]) for n in range(3)] == ([1, 1, 1] if killed == "connector" else [1, 2, 1])
    assert not any(alive(pid) for pid in waiting(said))
    broker = state("p")
    delivered = broker.deliveries.get("to")
    broker.close()
    assert (delivered.cursor, delivered.division) == (1, None)
    assert delivered.counters["delivered"] == len(all_lines)


def test_what_cannot_be_noted_for_the_other_tasks_is_an_error(
    home: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(str(home / "spool"))

    def full(*_: object) -> None:
        raise SpoolError("the disk is full")

    monkeypatch.setattr(spool, "put", full)
    made: Any = registry.destination_class("standalone:counter")({"path": str(home / "out.txt")})
    made.told = Told(spool, "p", "destinations.to", nullcontext)
    with pytest.raises(Unavailable, match="the disk is full"):
        made.open(None)


def test_a_task_does_not_wait_for_ever_for_another_that_tells(
    quick: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONDUIT_CONNECTORS_TIMEOUT", "0.1")
    monkeypatch.setenv("CONDUIT_LEASE_TTL", "0.5")
    forget()
    written(quick, "standalone:counter", f"path: {quick}/out.txt", "none")
    with (
        opened("p", "run") as context,
        context.broker.leases.acquire("told.to", "somebody", ttl=60.0),
        pytest.raises(Unavailable, match="is told of its life by another task"),
        telling(context, "to"),
    ):
        raise AssertionError("two tell at a time")
