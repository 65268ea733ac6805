"""Handlers of messages as a whole, and those that connectors and processors register in code (SEMANTICS C3, C4, C7)."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conduit_tasks.broker.acks import MESSAGES, Acks
from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import Described, Listener
from conduit_tasks.connectors.file.connector import FileDestination, FileSource
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.delivery.handlers import Handlers, StateChange
from conduit_tasks.errors import ConfigError, PipelineStopped, SpoolError
from conduit_tasks.ledger.store import Ledger
from conduit_tasks.micro_batch.collection import collect
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.source_ack import ack
from conduit_tasks.operate.control import start
from conduit_tasks.pipeline.load import get_pipeline
from conduit_tasks.resend.redrive import redrive
from tests.faults.parts import events
from tests.micro_batch.harness import deliver_again, run_once, state, write_pipeline

FILE = """
version: "2.2"
pipelines:
  - id: p
    isolate: true
    spool: {retention: 0s}
    dead-letter-queue: {window-size: 0}
    handlers: [HANDLERS]
    processors:
      - {id: early, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 1.0 }}'}
      - {id: drop, plugin: filter, condition: '{{ eq .Payload.After.n 2.0 }}'}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}, ack-on: ON}
      - id: one
        type: destination
        plugin: file
        settings: {path: out/one.jsonl, format: payload}
        processors: [{id: late, plugin: error, settings: {message: no}, condition: '{{ eq .Payload.After.n 4.0 }}'}]
      - id: two
        type: destination
        plugin: file
        settings: {path: out/two.jsonl, format: payload}
        processors: [{id: late, plugin: error, settings: {message: no}, condition: '{{ ge .Payload.After.n 4.0 }}'}]
"""
# 1 fails early, 2 is filtered, 4 fails at both, 5 at the second one.
MODULE = """
seen, broken = [], []

def notify(changes):
    if broken:
        raise ValueError("no network")
    seen.extend(changes)
"""
_number = itertools.count()


@pytest.fixture
def told(home: Path) -> Iterator[Callable[..., Any]]:
    """Writes the pipeline, with a handler of messages of these states in a module, which it returns."""
    name, path = f"told_of_messages_{next(_number)}", list(sys.path)

    def write(*states: str, ack_on: str = "delivered", retention: str = "0s") -> Any:
        (home / f"{name}.py").write_text(MODULE)
        handlers = ", ".join(f'{{on: {on}, of: message, call: "{name}:notify"}}' for on in states)
        text = (
            FILE.replace("HANDLERS", handlers).replace("ON", ack_on).replace("retention: 0s", f"retention: {retention}")
        )
        write_pipeline(home, "p", text)
        sys.path.insert(0, str(home))
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield write
    sys.modules.pop(name, None)
    sys.path[:] = path


def short(change: StateChange) -> tuple[Any, ...]:
    return change.seq, change.state, change.node


@pytest.mark.proves("C3", "C4", "C7")
@pytest.mark.parametrize("ack_on", ["delivered", "stored"])
def test_a_message_is_told_once_acked_when_the_last_destination_has_it_nacked_at_the_first_nack(
    home: Path, told: Callable[..., Any], ack_on: str
) -> None:
    # Given a destination that is away, and another that has everything
    module = told("acked", "nacked", ack_on=ack_on)
    rows = events(home / "data", 6)
    (home / "out/two.jsonl").mkdir(parents=True)
    run_once("p", "first")
    # Then nacks are told, and no message is acked yet
    assert [short(c) for c in module.seen] == [
        (1, "nacked", "processors/early"),
        (4, "nacked", "destinations.one/late"),
    ]
    # When the last one has it
    (home / "out/two.jsonl").rmdir()
    run_once("p", "second")
    # Then everything else is told, once, with the record and where it came from
    assert [short(c) for c in module.seen[2:]] == [
        (5, "nacked", "destinations.two/late"),
        (0, "acked", "pipeline"),
        (3, "acked", "pipeline"),
        (2, "acked", "pipeline"),
    ]
    assert {(c.of, c.source) for c in module.seen} == {("message", "in")}
    assert [c.record and c.record.after for c in module.seen[3:]] == [rows[0], rows[3], None]
    run_once("p", "third")
    assert len(module.seen) == 6
    assert state("p").positions.acked("in")


@pytest.mark.proves("C7", "C8", "C12")
@pytest.mark.parametrize("ack_on", ["delivered", "stored"])
def test_a_source_hears_nothing_and_nothing_is_collected_before_the_handlers_were_told(
    home: Path, told: Callable[..., Any], ack_on: str
) -> None:
    # Given a handler that raises
    module = told("acked", ack_on=ack_on)
    module.broken.append(True)
    events(home / "data", 4)
    with pytest.raises(PipelineStopped, match=r"told_of_messages_.*:notify raised ValueError: no network"):
        run_once("p")
    # Then the pipeline stands still with its error, and the source was told nothing
    broker = state("p")
    assert broker.lifecycle.status().status == "degraded"
    assert bool(broker.positions.acked("in")) == (ack_on == "stored")
    with opened("p", "t") as context:
        assert collect(context) == []
        assert ack(context, "in", context.broker.acks.told()) is None, "told of none, a source hears of none"
    # And after the start the same messages are told, and the source is acked
    module.broken.clear()
    start("p")
    assert "acks.in" in run_once("p", "again"), "there is something to do"
    assert [c.seq for c in module.seen] == [0, 3, 2]
    assert broker.positions.acked("in")
    assert broker.micro_batches.find(1) is None, "collected"


@pytest.mark.proves("C7")
@pytest.mark.parametrize("ack_on", ["delivered", "stored"])
def test_a_crash_between_telling_and_committing_tells_the_same_again(
    home: Path, told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, ack_on: str
) -> None:
    module = told("acked", ack_on=ack_on, retention="1h")
    events(home / "data", 4)

    class Killed(BaseException):
        pass

    whole = Acks.commit

    def killed(self: Acks, source: str, *args: Any) -> Any:
        if source != MESSAGES:
            return whole(self, source, *args)
        monkeypatch.setattr(Acks, "commit", whole)
        raise Killed

    monkeypatch.setattr(Acks, "commit", killed)
    with pytest.raises(Killed):
        run_once("p")
    assert bool(state("p").positions.acked("in")) == (ack_on == "stored")
    run_once("p", "again")
    assert [c.seq for c in module.seen] == [0, 3, 2] * 2
    run_once("p", "once more")
    assert len(module.seen) == 6


@pytest.mark.proves("C3", "C4")
def test_a_nack_that_only_the_brokers_index_knows_of_is_none_that_is_acked(
    home: Path, told: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given that what fails is dropped, and a ledger that cannot be written
    module = told("acked")
    text = (home / "include/pipelines/p.yaml").read_text()
    (home / "include/pipelines/p.yaml").write_text(text.replace("{window-size: 0}", "{plugin: log, window-size: 0}"))

    def full(*_: Any) -> None:
        raise SpoolError("no room")

    monkeypatch.setattr(Ledger, "write", full)
    events(home / "data", 6)
    run_once("p")
    assert [c.seq for c in module.seen] == [0, 3, 2]


@pytest.mark.proves("C3")
def test_what_a_cleared_task_delivers_again_are_messages_of_their_own(home: Path, told: Callable[..., Any]) -> None:
    module = told("acked", "nacked", retention="1h")
    events(home / "data", 6)
    run_once("p", "run")
    del module.seen[:]
    deliver_again("p", "two", "run")
    assert [short(c) for c in module.seen if c.state == "nacked"] == [
        (4, "nacked", "destinations.two/late"),
        (5, "nacked", "destinations.two/late"),
    ]
    assert sorted(c.seq for c in module.seen if c.state == "acked") == [0, 3]
    assert all(c.epoch for c in module.seen)


@pytest.mark.proves("C3", "X2")
def test_a_redrive_is_a_message_of_its_own(home: Path, told: Callable[..., Any]) -> None:
    module = told("acked", "nacked")
    events(home / "data", 6)
    run_once("p")
    del module.seen[:]
    text = (home / "include/pipelines/p.yaml").read_text()
    (home / "include/pipelines/p.yaml").write_text(text.replace("eq .Payload.After.n 4.0", "eq .Payload.After.n 99.0"))
    with opened("p", "t") as context:
        redrive(context, Selection(destination="one"), "me", wait=60.0)
    ((seq, what, node),) = map(short, module.seen)
    assert (seq, what, node) == (4, "acked", "destinations.one")
    assert module.seen[0].epoch > 0
    assert module.seen[0].of == "message"


HEARD: list[tuple[str, StateChange]] = []


def hear(who: str) -> Callable[[list[StateChange]], None]:
    return lambda changes: HEARD.extend((who, change) for change in changes)


class ListeningSource(FileSource):
    def handlers(self) -> Any:
        return {state: hear(f"source {self.connector}") for state in ("acked", "nacked")}


class ListeningDestination(FileDestination):
    registered: ClassVar[dict[str, Any]] = {}

    def handlers(self) -> Any:
        return self.registered or {"nacked": hear(f"destination {self.connector}")}


@pytest.fixture
def listening(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """File connectors that register handlers, and a python processor whose function does."""
    found = Described(ListeningSource, ListeningDestination)
    monkeypatch.setattr(registry, "described", lambda name: found)
    monkeypatch.setattr(ListeningDestination, "registered", {})
    name, path = f"listening_{next(_number)}", list(sys.path)
    (home / f"{name}.py").write_text(
        "seen = []\ndef pass_on(record):\n    return record\npass_on.handlers = {'acked': seen.extend}\n"
    )
    text = FILE.replace("HANDLERS", "").replace("ON", "delivered")
    own = f"      - {{id: mine, plugin: python, settings: {{call: '{name}:pass_on'}}}}\n    connectors:"
    text = text.replace("    connectors:", own, 1)
    more = '{id: other, type: source, plugin: file, settings: {path: "more/*.jsonl", format: jsonl, settle: 0s}}'
    text = text.replace("      - id: one", f"      - {more}\n      - id: one")
    write_pipeline(home, "p", text)
    HEARD.clear()
    sys.path.insert(0, str(home))
    importlib.invalidate_caches()
    yield home
    sys.modules.pop(name, None)
    sys.path[:] = path


@pytest.mark.proves("C7")
def test_connectors_and_processors_are_told_by_what_they_register_themselves(listening: Path) -> None:
    # Given records of two sources, some of which fail
    events(listening / "data", 6)
    events(listening / "more", 1, start=0)
    # When they are delivered
    run_once("p")
    # Then a destination hears of what it nacked, and only there
    at = lambda who: [short(change) for name, change in HEARD if name == who]  # noqa: E731
    assert at("destination one") == [(4, "nacked", "destinations.one/late")]
    assert [c.of for name, c in HEARD if name.startswith("destination")] == ["destination"] * 3
    assert at("destination two") == [(4, "nacked", "destinations.two/late"), (5, "nacked", "destinations.two/late")]
    # A source of its own messages as a whole, once each, in the order of its states
    assert sorted(at("source in"))[0] == (0, "acked", "pipeline")
    assert [seq for seq, *_ in sorted(at("source in"))] == [0, 1, 2, 3, 4, 5]
    assert at("source other") == [(6, "acked", "pipeline")]
    # And a pipeline processor of all messages
    module = next(module for name, module in sys.modules.items() if name.startswith("listening_"))
    assert sorted(c.seq for c in module.seen) == [0, 2, 3, 6]


@pytest.mark.parametrize("given", [{"lost": print}, {"acked": "print"}])
def test_what_is_no_handler_is_refused_by_name(
    listening: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(ListeningDestination, "registered", given)
    with pytest.raises(ConfigError, match=r"file \(one\) registers .* `handlers\(\)` gives a function for acked"):
        Handlers(get_pipeline("p"), "destinations.one")


def test_most_register_nothing_and_are_not_even_made(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pipeline(home, "p", FILE.replace("HANDLERS", "").replace("ON", "delivered"))
    monkeypatch.setattr(FileDestination, "__init__", lambda *_: pytest.fail("made"))
    assert not Handlers(get_pipeline("p"), "destinations.one")
    assert FileDestination.handlers is Listener.handlers
