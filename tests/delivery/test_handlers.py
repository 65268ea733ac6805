"""State-change handlers: who is told of what, when, and what a handler that raises does (SEMANTICS C7)."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.errors import ConfigError, PipelineStopped
from conduit_tasks.settings import forget
from tests.faults.parts import drive, events
from tests.micro_batch.harness import payloads, run_once, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 3000}
    dead-letter-queue: {window-size: 0}
    handlers: [HANDLERS]
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: out
        type: destination
        plugin: file
        settings: {path: out/file.jsonl, format: payload}
        trigger: {filters: [{not: {exact: {subject: "unwanted"}}}]}
        processors:
          - {id: no-2, plugin: error, settings: {message: two}, condition: '{{ eq .Payload.After.n 2.0 }}'}
          - {id: less, plugin: filter, condition: '{{ eq .Payload.After.n 4.0 }}'}
    processors:
      - {id: no-1, plugin: error, settings: {message: one}, condition: '{{ eq .Payload.After.n 1.0 }}'}
      - {id: drop, plugin: filter, condition: '{{ eq .Payload.After.n 3.0 }}'}
      - id: mark
        plugin: field.set
        settings: {field: '.Metadata["cloudevents.subject"]', value: unwanted}
        condition: '{{ eq .Payload.After.n 5.0 }}'
"""
MODULE = """
seen = []
broken = []

def notify(changes):
    if broken:
        raise ValueError("no network")
    seen.append(list(changes))
"""
_number = itertools.count()


@pytest.fixture
def told(home: Path) -> Iterator[Callable[..., Any]]:
    """Writes a pipeline whose handlers are in a module of the home folder; returns that module."""
    name = f"told_{next(_number)}"
    path = list(sys.path)

    def write(*states: str) -> Any:
        (home / f"{name}.py").write_text(MODULE)
        handlers = ", ".join(f'{{on: {on}, call: "{name}:notify"}}' for on in states)
        write_pipeline(home, "p", PIPELINE.replace("HANDLERS", handlers))
        sys.path.insert(0, str(home))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    sys.modules.pop(name, None)
    sys.path[:] = path


@pytest.mark.proves("C7", "C4")
def test_every_change_is_told_once_in_lists_with_the_record_and_why(home: Path, told: Callable[..., Any]) -> None:
    # Given handlers of both states, and records nacked, filtered and unwanted before and behind the fan-out
    module = told("acked", "nacked")
    rows = events(home / "data", 2_500)
    # When everything is delivered
    drive()
    # Then each record's change is told once, with the record as it came there
    changes = [change for call in module.seen for change in call]
    assert sorted(c.seq for c in changes) == list(range(2_500))
    assert all(len(call) <= 1_000 and len({c.state for c in call}) == 1 for call in module.seen)
    assert len(module.seen) < 12, "lists, not records"
    by_seq = {c.seq: c for c in changes}
    assert [(by_seq[n].state, by_seq[n].node) for n in range(7)] == [
        ("acked", "destinations.out"),
        ("nacked", "processors/no-1"),
        ("nacked", "destinations.out/no-2"),
        ("acked", "seal"),
        ("acked", "destinations.out"),
        ("acked", "seal"),
        ("acked", "destinations.out"),
    ]
    assert (by_seq[1].error, by_seq[1].error_class, by_seq[2].error) == ("one", "processor", "two")
    assert by_seq[3].record is None, "nothing is kept of what was filtered before the fan-out"
    assert all(c.record.after == rows[c.seq] for c in changes if c.record is not None)
    assert {c.index for c in changes} == set(range(2_500))
    assert payloads(home / "out/file.jsonl") == [row for row in rows if row["n"] not in (1, 2, 3, 4, 5)]


@pytest.mark.proves("C7", "C13")
def test_large_records_are_told_some_at_a_time(
    home: Path, told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given records of 20 KB, and a limit of 100 KB
    monkeypatch.setenv("CONDUIT_BATCH_BYTES", "100000")
    forget()
    module = told("acked, of: message")
    events(home / "data", 60, pad="x" * 20_000)
    # When they are delivered
    drive()
    # Then each message that was delivered is told once, in lists of about that many bytes
    assert len({c.seq for call in module.seen for c in call}) == sum(map(len, module.seen)) == 58
    assert max(sum(c.record is not None for c in call) for call in module.seen) == 4


@pytest.mark.proves("C7")
def test_only_the_states_that_are_asked_for_are_told(home: Path, told: Callable[..., Any]) -> None:
    module = told("nacked")
    events(home / "data", 10)
    drive()
    assert [[c.seq for c in call] for call in module.seen] == [[1], [2]]


@pytest.mark.proves("C7", "C8", "C16", "I9")
@pytest.mark.parametrize("node", ["seal", "destinations.out"])
def test_a_handler_that_raises_stops_the_pipeline_and_is_told_again_after_the_start(
    home: Path, told: Callable[..., Any], node: str
) -> None:
    # Given a handler that raises at the first change before the fan-out, or at a destination
    module = told("acked", "nacked")
    events(home / "data", 10)
    if node == "seal":
        module.broken.append(True)
        said = run_once_stopped()
    else:
        told_at_seal = MicroBatches.seal

        def seal(*args: Any, **kwargs: Any) -> Any:
            module.broken.append(True)
            return told_at_seal(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MicroBatches, "seal", seal)
            said = run_once_stopped()
    # Then the pipeline is stopped by its error, and nothing that it was told of is confirmed
    assert "no network" in said
    broker = state("p")
    status = broker.lifecycle.status()
    assert (status.status, status.error and status.error.node, status.error and status.error.error_class) == (
        "degraded",
        node,
        "handler",
    )
    assert broker.micro_batches.latest_sealed() == (0 if node == "seal" else 1)
    assert not broker.deliveries.get("out").confirmed
    # When it is fixed and the pipeline started, then it is told of everything, and everything arrives
    module.broken.clear()
    broker.lifecycle.start()
    broker.close()
    drive()
    assert {c.seq for call in module.seen for c in call} == set(range(10))
    assert len(payloads(home / "out/file.jsonl")) == 5


def run_once_stopped() -> str:
    said = run_once("p")
    return " ".join(str(error) for error in said.values() if isinstance(error, PipelineStopped))


@pytest.mark.proves("C7")
def test_the_handlers_are_told_before_the_broker_is(
    home: Path, told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a delivery that dies between the two
    class Killed(BaseException):
        pass

    module = told("acked")
    events(home / "data", 10)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Deliveries, "confirm", killed)
        with pytest.raises(Killed):
            run_once("p")
    first = [c.seq for call in module.seen for c in call]
    assert first == [5, 3, 0], "everything that ends before the fan-out, and what was to be confirmed first"
    # Then the next one tells again what was not confirmed: at least once
    drive()
    again = [c.seq for call in module.seen for c in call][len(first) :]
    assert again == [0, 4, 6, 7, 8, 9]


@pytest.mark.proves("C7")
def test_a_handler_that_is_not_there_is_named(home: Path, told: Callable[..., Any]) -> None:
    module = told("acked")
    write_pipeline(home, "p", PIPELINE.replace("HANDLERS", f'{{on: acked, call: "{module.__name__}:missing"}}'))
    events(home / "data", 10)
    with pytest.raises(ConfigError, match="has no function missing"):
        run_once("p")
