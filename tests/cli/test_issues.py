"""Dead letters of one cause are one issue: found, decided about, seen again, and sent again as a whole."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.broker.issues import Decision
from conduit_tasks.cli import issues as command
from conduit_tasks.cli.main import app
from conduit_tasks.dead_letters.issues import issue_ids, issues, shape, state
from conduit_tasks.errors import ConfigError
from tests.cli.test_dead_letters import place
from tests.delivery.shelf import Place, shelves
from tests.micro_batch.harness import run_until_quiet, write_pipeline
from tests.waiting import until

__all__ = ["place", "shelves"]


def call(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result


def listed(*options: str, code: int = 1) -> list[dict[str, Any]]:
    said = call("issues", "list", "p", "--format", "json", *options, code=code).stdout
    found: list[dict[str, Any]] = json.loads(said)
    return found


def test_a_long_look_at_all_pipelines_shows_in_a_terminal_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "120")
        with command._progress([f"p{n}" for n in range(1_200)]) as looking:
            looking("p1099")
        told = capsys.readouterr().err
        assert ("looking through the dead letters of pipeline 1,100 of 1,200" in told) is terminal
        assert terminal or not told


def test_letters_whose_messages_differ_in_numbers_are_one_issue(place: Place) -> None:
    # Given two records that were refused with their own number in the message, and one that failed before the fan-out
    found = {issue["node"]: issue for issue in listed()}
    assert {node: issue["count"] for node, issue in found.items()} == {"destinations.d": 2, "processors/bad": 1}
    refused = found["destinations.d"]
    assert refused["shape"] == "<n> is not wanted"
    assert (refused["keys"], refused["affected"]) == (["k3", "k5"], 2)
    assert sum(refused["days"].values()) == 2
    assert refused["first"] <= refused["last"] == refused["sample"]["at"]
    # Then all its letters are found by it
    letters = json.loads(call("dead-letters", "list", "p", "--issue", refused["id"], "--format", "json").stdout)
    assert [row["seq"] for row in letters] == [3, 5]
    table = call("issues", "list", "p", code=1)
    assert "destinations.d" in table.stdout
    assert "--issue ISSUE" in table.stderr
    # And each says what to do
    assert refused["advice"].startswith("Correct the records by a processor of d, or the destination's settings")
    assert f"{refused['id']}: {refused['advice']}" in " ".join(table.stderr.split())
    assert "Correct the processor in the pipeline's file" in found["processors/bad"]["advice"]


@pytest.mark.slow
def test_what_is_decided_stays_until_it_is_seen_again_or_its_time_is_over(place: Place) -> None:
    (refused,) = [issue["id"] for issue in listed() if issue["node"] == "destinations.d"]
    for word, said in (("acknowledge", "acknowledged"), ("mute", "muted"), ("resolve", "resolved")):
        call("issues", word, "p", refused)
        assert [i["node"] for i in listed()] == ["processors/bad"]
        (one,) = [i for i in listed("--all") if i["id"] == refused]
        assert (one["state"], "@" in one["decision"]["by"]) == (said, True)
    # Seen again, a resolved one is open
    place.feed([(n, f"k{n}") for n in range(10, 14)])
    place.refuse(12)
    run_until_quiet("p")
    assert {i["id"]: i["count"] for i in listed()}[refused] == 3
    # One that is muted for a while is open after it
    call("issues", "mute", "p", refused, "--for", "1ms")
    until(lambda: refused in [i["id"] for i in listed()])
    call("issues", "mute", "p", refused)
    assert "muted until opened" in call("issues", "list", "p", "--all", code=1).stdout
    call("issues", "mute", "p", refused, "--for", "7d")
    (end,) = [i["decision"]["until"] for i in listed("--all") if i["id"] == refused]
    said = f"muted until {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M}"
    assert said in call("issues", "list", "p", "--all", code=1).stdout
    assert refused not in [i["id"] for i in listed()]
    call("issues", "open", "p", refused)
    assert refused in [i["id"] for i in listed()]


@pytest.mark.proves("X2")
def test_an_issue_is_sent_again_as_a_whole_and_is_gone(place: Place) -> None:
    for issue in [i["id"] for i in listed() if i["node"] == "processors/bad"]:
        call("issues", "acknowledge", "p", issue)
    (refused,) = [issue["id"] for issue in listed()]
    place.refuse()
    call("dead-letters", "redrive", "p", "--issue", refused)
    assert listed(code=0) == []
    assert [i["node"] for i in listed("--all", code=0)] == ["processors/bad"]


def test_an_issue_that_is_not_there_is_refused(place: Place) -> None:
    result = CliRunner().invoke(app, ["issues", "resolve", "p", "nothing"])
    assert isinstance(result.exception, ConfigError)
    assert "p has no issue 'nothing'" in str(result.exception)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 is not wanted", "5 is not wanted"),
        ("no row 'ann' in table", "no row 'bob' in table"),
        ("GET https://a.example/1?x=2 said 500", "GET https://b.example/7 said 500"),
        ("id 6f1c2a3b-0000-4000-8000-0123456789ab is gone", "id 7f1c2a3b-1111-4000-8000-0123456789ab is gone"),
        ("hash deadbeef01 differs", "hash 0123456789abcdef differs"),
        ("took 1,234.5 s", "took 7 s"),
    ],
)
def test_a_shape_leaves_out_what_varies(one: str, other: str) -> None:
    assert shape(one) == shape(other)
    assert shape(one) != shape("something else")


def issue_of(row: dict[str, Any]) -> str:
    return issue_ids([row["node"]], [row["error_class"]], [row["error"]])[0]


def table(rows: list[dict[str, Any]]) -> pa.Table:
    schema = pa.schema(
        [(name, pa.string()) for name in ("destination", "node", "error_class", "error", "key", "issue")]
    )
    at = pa.field("at", pa.timestamp("us", "UTC"))
    return pa.Table.from_pylist([{**row, "issue": issue_of(row)} for row in rows], schema=schema.append(at))


def test_node_and_class_tell_issues_apart_and_order_does_not() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rest: dict[str, Any] = {"destination": "d", "key": None}
    rows = [
        {"node": node, "error_class": name, "error": f"{n} is wrong", "at": at.replace(day=n), **rest}
        for n, (node, name) in enumerate([("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")], 1)
    ]
    found = issues(table(rows), {}, 0.0)
    assert sorted(i.count for i in found) == [1, 1, 2]
    assert found[0].last.startswith("2026-01-04"), "the newest first"
    assert {i.id for i in issues(table(rows[::-1]), {}, 0.0)} == {issue_of(row) for row in rows}


def test_a_decision_is_over_when_it_says_so() -> None:
    assert state(None, 5.0, 9.0) == "open"
    assert state(Decision("resolved", "ann", 6.0), 5.0, 9.0) == "resolved"
    assert state(Decision("resolved", "ann", 6.0), 7.0, 9.0) == "open"
    assert state(Decision("acknowledged", "ann", 6.0), 7.0, 9.0) == "acknowledged"
    assert state(Decision("muted", "ann", 6.0, 10.0), 7.0, 9.0) == "muted"
    assert state(Decision("muted", "ann", 6.0, 10.0), 7.0, 10.0) == "open"
    assert state(Decision("muted", "ann", 6.0), 7.0, 10.0**12) == "muted"


def test_the_issues_of_all_pipelines_are_listed_together(place: Place, home: Path) -> None:
    from conduit_tasks.micro_batch.context import open_broker
    from conduit_tasks.operate.issues import note_failure

    log = {"dag": "q", "run": "r", "task": "sources.in", "map_index": -1, "try": 1}
    write_pipeline(
        home,
        "q",
        'version: "2.2"\npipelines:\n  - id: q\n    connectors:\n'
        "      - {id: in, type: source, plugin: file, settings: {path: in.jsonl}}\n"
        "      - {id: out, type: destination, plugin: log}\n",
    )
    (home / "include" / "pipelines" / "bad.yaml").write_text("a: [")
    note_failure(open_broker("q"), "sources.in", "sources.in", "SourceError", "in.jsonl is gone", "1", log)
    # Without a command they are a table, the newest first
    said = call("issues", code=1)
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["pipeline", "q", "p", "p"]
    assert "3 open, in 2 of 2 pipelines" in said.stderr
    assert "`conduit issues list PIPELINE` says what to do about each" in said.stderr
    assert "files with errors are left out" in said.stderr
    # Also by `list`, the largest first, and no more than is wanted
    largest = json.loads(call("issues", "list", "--order", "most", "--most", "1", "--format", "json", code=1).stdout)
    assert [(row["pipeline"], row["node"], row["count"]) for row in largest] == [("p", "destinations.d", 2)]
    assert "2 more: give --most, or a pipeline" in call("issues", "list", "--most", "1", code=1).stderr
    # What somebody looks after is there with --all only
    for row in json.loads(call("issues", "list", "--format", "json", code=1).stdout):
        call("issues", "acknowledge", row["pipeline"], row["id"])
    assert len(call("issues").stdout.splitlines()) == 1
    assert "acknowledged" in call("issues", "list", "--all").stdout
    # Letters that cannot be read are said, and an error
    next((home / ".conduit" / "dead-letters" / "p").rglob("*.parquet")).write_bytes(b"torn")
    assert "the dead letters of p cannot be read" in call("issues", code=1).stderr
