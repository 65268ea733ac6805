"""Alerts about issues, new or open again: told once, by a notifier that writes a file."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conduit_tasks.airflow import alerts, tasks
from conduit_tasks.airflow.failing import NodeFailed, failed, succeeded
from conduit_tasks.broker.broker import Broker
from conduit_tasks.pipeline.load import load_file
from tests.airflow.api_client import broker_of
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out.jsonl, format: payload}}}}
    processors:
      - id: bad
        plugin: error
        condition: '{{{{ eq (toString .Payload.After.n) "3" }}}}'
        settings: {{message: "no 3"}}
    alerts: {alerts}
"""
ALERT = {
    "notifier": "tests.airflow.late_notifier.ToFile",
    "arguments": {"path": "told", "text": "{{ conduit.state }} {{ conduit.node }}", "fail": "nobody"},
    "issues": True,
}


@pytest.fixture
def told(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A pipeline that tells of issues; what was told since the last call."""
    monkeypatch.chdir(home)
    write_pipeline(home, "p", PIPELINE.format(alerts=json.dumps([ALERT])))
    path = home / "told"

    def since() -> list[str]:
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return since


def end(node: str, error: str = "", *, attempt: int = 1, last: bool = True) -> None:
    """What Airflow calls when an attempt at a node's task has ended; `last`: no other follows."""
    ti = SimpleNamespace(dag_id="p", run_id="r", task_id=node, map_index=-1, try_number=attempt)
    if error:
        context = {"ti": ti, "exception": NodeFailed(node, "SourceError", error)}
        failed(context, pipeline_id="p", node=node, tells=last)
    else:
        succeeded({"ti": ti}, pipeline_id="p", node=node)


def only_issue(broker: Broker) -> str:
    (id,) = broker.issues.failing()
    return id


def test_a_task_that_fails_for_good_tells_at_once_and_once(told: Callable[[], list[str]]) -> None:
    # An attempt that is followed by another one tells nothing yet
    end("sources.in", "gone", last=False)
    assert told() == []
    end("sources.in", "gone", attempt=2)
    end("sources.in", "gone", attempt=3)
    alerts.look("p", "r")
    assert told() == ["new sources.in"]
    # One that succeeded is told of when it fails again
    end("sources.in")
    alerts.look("p", "r")
    assert told() == []
    end("sources.in", "gone", attempt=4)
    alerts.look("p", "r")
    assert told() == ["returned sources.in"]


def test_a_failed_attempt_whose_retry_went_well_is_not_told(told: Callable[[], list[str]]) -> None:
    end("sources.in", "gone", last=False)
    end("sources.in")
    alerts.look("p", "r")
    assert told() == []


def test_what_somebody_decided_is_respected(told: Callable[[], list[str]]) -> None:
    broker = broker_of("p")
    end("sources.in", "gone", last=False)
    id = only_issue(broker)
    for state in ("muted", "acknowledged"):
        broker.issues.decide(id, state, "ann")  # type: ignore[arg-type]
        end("sources.in", "gone", attempt=2)
        assert told() == [], state
    # One that is open again by its time, or seen again after it was resolved, is told; each once
    broker.issues.decide(id, "muted", "ann", time.time() - 1)
    for _ in range(2):
        alerts.look("p", "r")
    assert told() == ["new sources.in"]
    broker.issues.decide(id, "resolved", "ann")
    alerts.look("p", "r")
    assert told() == []
    end("sources.in", "gone", attempt=3)
    alerts.look("p", "r")
    assert told() == ["returned sources.in"]
    # Taking a decision back is no news
    broker.issues.decide(id, "acknowledged", "ann")
    broker.issues.decide(id, "open", "ann")
    alerts.look("p", "r")
    assert told() == []


def test_dead_letters_are_told_by_the_run_that_made_them_and_again_when_they_come_back(
    home: Path, told: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    stored = issue_alerts_stored(monkeypatch, reads)
    events(home / "data", 10)
    run_once("p")
    tasks.plan("p", "r1", {})
    assert told() == ["new processors/bad"]
    # As long as nothing has changed, nobody reads the letters
    for n in range(3):
        tasks.plan("p", f"r2.{n}", {})
    assert told() == []
    assert len(reads) == 1
    # A second one of the same cause is no news
    events(home / "data", 10, start=10)
    run_once("p")
    tasks.plan("p", "r3", {})
    assert told() == []
    # Resolved, and seen again
    broker = broker_of("p")
    from conduit_tasks.micro_batch.context import opened

    with opened("p", "t") as context:
        (id,) = stored(context)["issue"].to_pylist()
    broker.issues.decide(id, "resolved", "ann")
    tasks.plan("p", "r4", {})
    assert told() == []
    again(home)
    tasks.plan("p", "r5", {})
    assert told() == ["returned processors/bad"]
    # Gone, it is forgotten: if it comes back, it is new
    from conduit_tasks.dead_letters.select import Selection
    from conduit_tasks.resend import redrive

    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    write_pipeline(home, "p", text.replace('"3"', '"never"'))
    with opened("p", "t") as context:
        redrive.redrive(context, Selection(), "t", wait=20)
    tasks.plan("p", "r6", {})
    assert told() == []
    assert broker.issues.announced() == {}
    broker.issues.decide(id, "open", "ann")
    write_pipeline(home, "p", text)
    again(home)
    tasks.plan("p", "r7", {})
    assert told() == ["new processors/bad"]


def again(home: Path) -> None:
    """Another record that fails."""
    events(home / "data", 1, start=3)
    run_once("p")


def issue_alerts_stored(monkeypatch: pytest.MonkeyPatch, reads: list[int]) -> Callable[[Any], Any]:
    from conduit_tasks.operate import issues

    stored = issues.stored

    def counted(context: Any) -> Any:
        reads.append(1)
        return stored(context)

    monkeypatch.setattr(issues, "stored", counted)
    return stored


@pytest.mark.proves("I5")
def test_those_that_look_at_the_same_time_tell_once(told: Callable[[], list[str]]) -> None:
    end("sources.in", "gone", last=False)
    threads = [threading.Thread(target=alerts.look, args=("p", f"r{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told() == ["new sources.in"]


def test_who_could_not_be_told_is_told_by_the_next_look_and_no_task_is_harmed(
    home: Path, told: Callable[[], list[str]]
) -> None:
    (home / "nobody").touch()
    events(home / "data", 10)
    run_once("p")
    tasks.plan("p", "r1", {})
    end("sources.in", "gone")
    assert told() == []
    (home / "nobody").unlink()
    tasks.plan("p", "r2", {})
    assert sorted(told()) == ["new processors/bad", "new sources.in"]
    tasks.plan("p", "r3", {})
    assert told() == []


def test_a_mute_that_ends_is_noticed_though_nothing_else_has_changed(home: Path, told: Callable[[], list[str]]) -> None:
    events(home / "data", 10)
    run_once("p")
    tasks.plan("p", "r1", {})
    told()
    broker = broker_of("p")
    (subject,) = broker.issues.announced()
    broker.issues.decide(subject.partition("|")[0], "muted", "ann", time.time() + 1)
    tasks.plan("p", "r2", {})

    def looked() -> list[str]:
        alerts.look("p", "r3")
        return told()

    assert until(lambda: told() or looked()) == ["returned processors/bad"]


def test_an_alert_that_does_not_ask_hears_of_no_issue(home: Path, told: Callable[[], list[str]]) -> None:
    write_pipeline(home, "p", PIPELINE.format(alerts=json.dumps([{**ALERT, "issues": False, "no-data": "1h"}])))
    end("sources.in", "gone")
    assert told() == []
    path = home / "include" / "pipelines" / "p.yaml"
    path.write_text(path.read_text().replace("false", '"perhaps"'))
    assert [f.code for f in load_file(path).errors] == ["E103"]
