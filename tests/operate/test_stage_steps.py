"""Each processor on a record's way: the last records of a stage, before and after each processor that follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError
from conduit_tasks.operate import apart
from conduit_tasks.operate.apart import peeked
from conduit_tasks.operate.stage_steps import has_steps
from conduit_tasks.pipeline.load import get_pipeline
from tests.micro_batch.harness import write_pipeline
from tests.operate.asking import here
from tests.operate.test_peek import PIPELINE, delivered

__all__ = ["delivered", "here"]


def seen(node: str, last: int = 20) -> dict[str, Any]:
    return peeked(get_pipeline("p"), node, last, 120.0)


def n(record: dict[str, Any]) -> int:
    return int(record["payload"]["after"]["n"])


def ways(found: dict[str, Any]) -> list[tuple[int, list[str]]]:
    """Number of each record → its steps."""
    return [
        (n(each["record"]), [f"{step['node']}/{step['processor']} {step['outcome']}" for step in each["steps"]])
        for each in found["records"]
    ]


@pytest.mark.usefixtures("here")
def test_what_was_read_shows_each_processor_that_follows_before_and_after_it(delivered: None) -> None:
    found = seen("sources.in", 4)
    on = ["processors/late skipped", "processors/even changed"]
    # One that failed in the source's own processor was kept as it was read: its steps begin there
    assert ways(found) == [(9, on), (8, on), (7, ["sources.in/early failed"]), (6, ["processors/late failed"])]
    changed = found["records"][1]["steps"][1]
    assert (changed["before"][0]["metadata"].get("even"), changed["after"][0]["metadata"]["even"]) == (None, "true")
    assert changed["after"][0] == next(
        each["record"] for each in seen("processors")["records"] if n(each["record"]) == 8
    ), "as the run made it"
    assert [each["sent"] for each in found["records"]] == [None] * 4
    text = json.dumps(found)
    assert "4111" not in text
    assert "hush" not in text


@pytest.mark.usefixtures("here")
def test_of_a_processor_the_records_that_came_to_it_are_shown(delivered: None) -> None:
    # 7 failed before it, at the source, and 6 at the one before
    even = seen("processors/even", 5)
    assert [number for number, _ in ways(even)] == [9, 8, 5], "of the last five that were read"
    assert even["node"] == "processors/even"
    late = seen("processors/late", 4)
    assert ways(late) == [
        (9, ["processors/late skipped"]),
        (8, ["processors/late skipped"]),
        (6, ["processors/late failed"]),
    ], "and none after it"
    failed = late["records"][2]
    assert failed["steps"][0]["before"][0] == failed["record"]
    assert failed["state"] == "passed", "as far as its stage goes"
    # At a destination with the answer
    bad = seen("destinations.even/bad", 3)
    assert [each["state"] for each in bad["records"]] == ["acked", "acked", "nacked"]
    assert bad["records"][2]["steps"][0]["error"] == "no ***"
    assert bad["records"][2]["answer"]["outcome"] == "nacked"


def test_a_processor_that_is_not_there_or_whose_records_are_kept_nowhere_is_refused(delivered: None) -> None:
    with pytest.raises(ConfigError, match=r"no processor processors/x; those of processors are: processors/late, proc"):
        seen("processors/x")
    with pytest.raises(ConfigError, match=r"no processor destinations.all/x; those of destinations.all are: none"):
        seen("destinations.all/x")
    with pytest.raises(
        ConfigError, match=r"what sources.in read is kept as its own processors made it.*look at sources"
    ):
        seen("sources.in/early")


@pytest.mark.usefixtures("here")
def test_errors_name_the_place_and_no_value_of_the_environment(
    home: Path, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATE", "quite-a-secret")
    text = PIPELINE.replace(
        'plugin: error, condition: "{{ eq .Payload.After.n 6 }}"',
        'plugin: error, settings: {message: "${LATE} of {{ .Payload.After.n }}"}',
    )
    write_pipeline(home, "p", text)
    (one,) = seen("processors/late", 1)["records"]
    (step,) = one["steps"]
    assert step["error"] == "${LATE} of 9"
    assert step["place"]["line"] > 1
    assert "quite-a-secret" not in json.dumps(one)


@pytest.mark.usefixtures("here")
def test_what_would_make_calls_is_left_out_and_what_is_not_found_in_time_is_not_made_up(
    home: Path, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = '      - {id: call, plugin: webhook.http, settings: {request.url: "http://localhost:1"}}\n'
    write_pipeline(home, "p", PIPELINE.rstrip(" \n") + "\n" + more)
    (one,) = seen("processors/call", 1)["records"]
    assert [step["outcome"] for step in one["steps"]] == ["skipped", "changed", "left out"]
    monkeypatch.setattr(apart, "_ask", lambda ask, seconds: (b'{"pee', b"", True, -9))
    late = seen("processors/call", 2)
    assert [(n(each["record"]), each["steps"]) for each in late["records"]] == [(9, None), (8, None)]


def test_only_what_processors_follow_is_asked_of_a_process_of_its_own(delivered: None) -> None:
    pipeline = get_pipeline("p")
    nodes = ("sources.in", "processors", "processors/even", "destinations.all", "destinations.even")
    assert [has_steps(pipeline, node) for node in nodes] == [True, False, True, False, True]


@pytest.mark.slow
def test_the_command_prints_both_sides_of_a_processor(delivered: None) -> None:
    # By a process of its own
    done = CliRunner().invoke(app, ["records", "peek", "p", "--node", "processors/even", "--last", "2"])
    assert (done.exit_code, done.stdout.count(": changed")) == (0, 2)
    assert done.stdout.startswith("sources.in/2/0/4/0: changed")
    assert '"even": "false"' in done.stdout
