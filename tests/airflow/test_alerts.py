"""Deadline alerts by the code that the DAG's tasks call, on a real broker, with a notifier that writes a file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from conduit_tasks.airflow import tasks
from conduit_tasks.micro_batch import draining
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.load import get_pipeline, load_file
from tests.faults.parts import events
from tests.micro_batch.harness import run_once

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    isolate: true
    lag-budget: {{records: 100}}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: fine, type: destination, plugin: file, settings: {{path: fine.jsonl, format: payload}}, deadline: 1ms}}
      - id: away
        type: destination
        plugin: file
        settings: {{path: there/out.jsonl, format: payload}}
        deadline: {deadline}
{alerts}
"""
WEBHOOK = "conduit_tasks.airflow.webhook.Webhook"
ALERT = {
    "notifier": "tests.airflow.late_notifier.ToFile",
    "arguments": {"path": "told", "text": "{{ conduit.destination }} {{ conduit.state }}", "fail": "nobody"},
}


@pytest.fixture
def started(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes the pipeline, whose destination `away` cannot be written to while the file `there` is in its way."""
    monkeypatch.chdir(home)

    def start(deadline: str = "1ms", alerts: str | None = None) -> None:
        text = f"    alerts: [{json.dumps(ALERT)}]" if alerts is None else alerts
        (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE.format(deadline=deadline, alerts=text))
        if not (home / "data").exists():
            (home / "there").touch()
            events(home / "data", 10)
            run_once("p")

    return start


def look(run: str = "run") -> None:
    """What every run does, however little there is to do."""
    tasks.plan("p", run, {})


def told(home: Path) -> list[str]:
    path = home / "told"
    return path.read_text().splitlines() if path.exists() else []


def test_a_breach_and_its_end_are_told_once_however_many_runs_see_them(
    home: Path, started: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that is behind its deadline, and one that is not; acks that wait for no task: there are none
    monkeypatch.setattr(draining, "NEVER", 0.0)
    started()
    for n in range(3):
        look(f"run-{n}")
    tasks.ack("p", "in", "run-2")
    assert told(home) == ["away late"]
    # When it can be written to again
    (home / "there").unlink()
    run_once("p")
    # Then that is told once, too
    look()
    look()
    assert told(home) == ["away late", "away recovered"]


def test_a_degraded_pipeline_tells_as_well(home: Path, started: Callable[..., None]) -> None:
    started()
    with opened("p", "t") as context:
        context.broker.lifecycle.fail("sources.in", "broken", "E", None)
    with pytest.raises(AirflowFailException):
        look()
    assert told(home) == ["away late"]


def test_who_could_not_be_told_is_told_by_the_next_run(home: Path, started: Callable[..., None]) -> None:
    (home / "nobody").touch()
    started()
    look()
    assert told(home) == []
    (home / "nobody").unlink()
    look()
    look()
    assert told(home) == ["away late"]


def test_within_its_deadline_nothing_is_told(home: Path, started: Callable[..., None]) -> None:
    started(deadline="1h")
    look()
    assert told(home) == []


def test_what_is_planned_and_not_sealed_counts_as_waiting(home: Path, started: Callable[..., None]) -> None:
    # Given a file that was read by nobody yet
    started(deadline="1h")
    (home / "there").unlink()
    run_once("p")
    events(home / "data", 10, start=10)
    tasks.plan("p", "run", {})
    started()
    # Then both are late with it
    look()
    assert sorted(told(home)) == ["away late", "fine late"]


def test_pipelines_without_alerts_of_their_own_use_the_variables(
    home: Path, started: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_CONDUIT_ALERTS", json.dumps([ALERT]))
    started(alerts="")
    look()
    assert told(home) == ["away late"]


def test_a_variable_that_is_no_list_of_alerts_fails_no_run(
    home: Path, started: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_CONDUIT_ALERTS", json.dumps({"notifier": "secret"}))
    started(alerts="")
    look()
    assert "conduit_alerts must be a list" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.proves("I5")
def test_runs_at_the_same_time_tell_once_and_one_that_died_is_followed_by_another(
    home: Path, started: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    started()
    # Given one that was about to tell and died
    with opened("p", "t") as context:
        assert context.broker.alerts.claim("away|0:tests.airflow.late_notifier.ToFile", True)
    threads = [threading.Thread(target=look, args=(f"run-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told(home) == []
    # When its time is over
    monkeypatch.setattr("conduit_tasks.broker.alerts.TELLING", 60)
    with opened("p", "t") as context:
        key = context.broker.keys.alerts
        for field in context.broker.access.hash(key):
            context.broker.access.read(("HSET", key, field, "gone|1"))
    threads = [threading.Thread(target=look, args=(f"run-{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Then it is told, once
    assert told(home) == ["away late"]


def test_deadlines_and_alerts_change_no_version_of_the_pipeline(home: Path, started: Callable[..., None]) -> None:
    started()
    before = get_pipeline("p").digest()
    started(deadline="2h", alerts="")
    assert get_pipeline("p").digest() == before


def test_the_file_says_where_a_deadline_or_a_notifier_is_wrong(home: Path) -> None:
    path = home / "include" / "pipelines" / "p.yaml"
    text = PIPELINE.format(deadline="1s", alerts="")
    for good, bad, code in (
        ("deadline: 1s", "deadline: 0s", "E103"),
        ("settle: 0s}}", "settle: 0s}, deadline: 1s}", "E107"),
    ):
        assert good in text
        path.write_text(text.replace(good, bad))
        assert [f.code for f in load_file(path).errors] == [code]
    path.write_text(
        PIPELINE.format(deadline="1s", alerts='    alerts: [{notifier: "tests.airflow.late_notifier.Nobody"}]')
    )
    (finding,) = load_file(path, plugins=True).errors
    assert finding.code == "E212"


@pytest.mark.parametrize(
    ("alert", "says"),
    [
        ({"notifier": "pathlib.Path"}, "pathlib.Path is no BaseNotifier"),
        ({"notifier": "tests.airflow.nowhere.Pager"}, "No module named 'tests.airflow.nowhere'"),
        ({"notifier": "include.broken.Pager"}, "importing include.broken.Pager fails: RuntimeError: on import"),
        ({"notifier": WEBHOOK}, "Webhook does not take these arguments: missing a required argument: 'url'"),
        ({"notifier": WEBHOOK, "arguments": {"ur": "http://x"}}, "got an unexpected keyword argument 'ur'"),
        ({"notifier": WEBHOOK, "arguments": {"url": "ftp://x/token"}}, "the webhook's url is no address"),
    ],
)
def test_validate_finds_a_notifier_that_could_not_be_made(home: Path, alert: dict[str, Any], says: str) -> None:
    """Given a class that cannot be loaded, or arguments that it does not take, then the file says so, not the run."""
    (home / "include" / "broken.py").write_text("raise RuntimeError('on import')")
    path = home / "include" / "pipelines" / "p.yaml"
    path.write_text(PIPELINE.format(deadline="1s", alerts=f"    alerts: [{json.dumps(alert)}]"))
    (finding,) = load_file(path, plugins=True).errors
    assert finding.code == "E212"
    assert says in finding.message
    assert "token" not in finding.message


def test_all_that_is_wrong_with_an_alert_and_with_what_is_called_is_told_at_once(home: Path) -> None:
    """Given a wrong rule beside wrong arguments, and a handler whose module ends the process."""
    (home / "include" / "ends.py").write_text("import sys\nsys.exit('no such thing')")
    (home / "include" / "torn.py").write_text("def handle(")
    path = home / "include" / "pipelines" / "p.yaml"
    handlers = "    handlers: [{on: acked, call: 'include.ends:f'}, {on: nacked, call: 'include.torn:f'}]"
    alert = json.dumps({"notifier": WEBHOOK, "arguments": {"url": "ftp://x"}, "lag": "perhaps"})
    path.write_text(PIPELINE.format(deadline="1s", alerts=f"    alerts: [{alert}]\n{handlers}"))
    found = {f.message: f.code for f in load_file(path, plugins=True).errors}
    assert sorted(found.values()) == ["E103", "E212", "E212", "E212"]
    for said in ("SystemExit: no such thing", "SyntaxError: ", "the webhook's url"):
        assert sum(said in message for message in found) == 1, said


def test_a_notifier_that_needs_a_task_to_be_made_is_no_fault_of_the_file(home: Path) -> None:
    path = home / "include" / "pipelines" / "p.yaml"
    alert = {"notifier": "tests.airflow.late_notifier.Elsewhere"}
    path.write_text(PIPELINE.format(deadline="1s", alerts=f"    alerts: [{json.dumps(alert)}]"))
    assert not load_file(path, plugins=True).errors


def with_rule(**rule: str) -> str:
    return f"    alerts: [{json.dumps({**ALERT, **{name.replace('_', '-'): value for name, value in rule.items()}})}]"


def test_a_rule_of_lag_holds_for_every_destination(home: Path, started: Callable[..., None]) -> None:
    # Given deadlines that are far, and a rule that is near, and a destination that cannot be written to
    started(deadline="1h", alerts=with_rule(lag="1ms"))
    look()
    look()
    assert told(home) == ["away late"]
    (home / "there").unlink()
    run_once("p")
    look()
    assert told(home) == ["away late", "away recovered"]


def test_dead_letters_of_a_time_are_counted_and_told_once(home: Path, started: Callable[..., None]) -> None:
    started(deadline="1h", alerts=with_rule(dead_letters="3/h"))
    with opened("p", "t") as context:
        lease = context.broker.leases.acquire("destinations.away", "t")
        for n in range(2):
            context.broker.deliveries.confirm("away", 1, lease.token, [(n, n)], {"matched": 1, "nacked": 1})
        look()
        assert told(home) == [], "two are fewer than three"
        context.broker.deliveries.confirm("away", 1, lease.token, [(2, 2)], {"matched": 1, "nacked": 1})
        lease.release()
    look()
    look()
    assert told(home) == [" late"]


def test_silence_is_told_unless_the_pipeline_is_younger(home: Path, started: Callable[..., None]) -> None:
    started(deadline="1h", alerts=with_rule(no_data="1h"))
    look()
    assert told(home) == [], "ten were read just now"
    with opened("p", "t") as context:
        context.broker.redis.delete(context.broker.keys.series(""))
        look()
        assert told(home) == [], "it is not an hour old"
        context.broker.redis.hset(context.broker.keys.pipeline, "created", "1")
    look()
    look()
    assert told(home) == [" late"]
    (home / "there").unlink()
    events(home / "data", 10, start=10)
    run_once("p")
    look()
    assert told(home) == [" late", " recovered"]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["5", "0/h", "5/", "x/h", "5/x", "-1/h", "5/0s"])
def test_a_rule_that_is_none_is_named(home: Path, started: Callable[..., None], wrong: str) -> None:
    started(alerts=with_rule(dead_letters="3/h"))
    path = home / "include" / "pipelines" / "p.yaml"
    path.write_text(path.read_text().replace("3/h", wrong))
    assert [f.message for f in load_file(path).findings if "dead-letters" in f.message or "5/h" in f.message]
