"""`conduit filters try`: events in, answers out, one line each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app

EVENTS = (
    '{"specversion":"1.0","id":"1","source":"/s","type":"flight.departed","carrier":"UA","delay":12}\n'
    "\n"
    '{"specversion":"1.0","id":"2","source":"/s","type":"flight.landed","data":{"a":1},"carrier":null}\n'
)


def run(*options: str, events: str = EVENTS) -> Result:
    return CliRunner().invoke(app, ["filters", "try", *options], input=events)


def answers(*options: str, events: str = EVENTS) -> list[dict[str, Any]]:
    done = run(*options, events=events)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.proves("T3")
def test_each_event_gets_a_result_or_an_error_with_a_result() -> None:
    assert answers("--sql", "type LIKE '%departed'") == [{"result": True}, {"result": False}]
    assert answers("--sql", "-delay") == [
        {"result": -12},
        {"error": "missingAttribute", "message": "the event has no attribute delay", "result": 0},
    ]
    assert answers("--sql", "-10") == [{"result": -10}] * 2


def test_a_parse_error_answers_every_event() -> None:
    both = answers("--sql", "ABC(")
    assert [(each["error"], each["result"]) for each in both] == [("parse", False)] * 2
    assert "line 1, column 5" in both[0]["message"]


def test_what_is_no_event_is_said_and_the_next_line_goes_on() -> None:
    bad, worse, good = answers("--sql", "id = 'x'", events='{"id":\n[1]\n{"id":"x"}\n')
    assert bad["error"] == worse["error"] == "generic"
    assert "line 1 is not JSON" in bad["message"]
    assert "line 2 is no JSON object" in worse["message"]
    assert good == {"result": True}


def test_a_filter_of_any_dialect_can_be_tried_alone_or_in_a_list() -> None:
    assert answers("--filter", '{"exact":{"carrier":"UA"}}') == [{"result": True}, {"result": False}]
    assert answers("--filter", '[{"prefix":{"type":"flight."}},{"sql":"NOT EXISTS carrier"}]') == [
        {"result": False},
        {"result": True},
    ]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "exactly one of --sql EXPR and --filter JSON"),
        (("--sql", "a", "--filter", "{}"), "exactly one"),
        (("--filter", "{"), "--filter is not JSON"),
        (("--filter", '{"exakt":{}}'), "did you mean exact"),
    ],
)
def test_wrong_options_are_refused(options: tuple[str, ...], says: str) -> None:
    done = run(*options)
    assert done.exit_code == 1
    assert says in str(done.exception)
