"""`conduit processors` and `conduit connectors`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError, UnknownPlugin

CONDUITS = """
    avro.decode avro.encode base64.decode base64.encode clone cohere.command cohere.embed cohere.rerank
    custom.javascript error field.convert field.exclude field.rename field.set filter json.decode json.encode ollama
    openai.embeddings openai.textgen split unwrap.debezium unwrap.kafkaconnect unwrap.opencdc webhook.http
"""
NAMES = [*CONDUITS.split(), "dedupe", "enrich", "mask", "python", "schema.check", "sql"]


def conduit(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(app, list(words), input=input)


def tried(name: str, *options: str, lines: list[Any]) -> list[dict[str, Any]]:
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    done = conduit("processors", "try", name, *options, input=text)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def opencdc(after: Any, **more: Any) -> dict[str, Any]:
    return {
        "position": "cG9z",
        "operation": "create",
        "metadata": {},
        "key": None,
        "payload": {"before": None, "after": after},
        **more,
    }


def test_every_processor_is_listed_and_none_is_broken() -> None:
    listed = {
        each["name"]: each["summary"] for each in json.loads(conduit("processors", "list", "--format", "json").stdout)
    }
    assert sorted(listed) == sorted(NAMES)
    assert not [summary for summary in listed.values() if "cannot be loaded" in summary]
    assert "field.set" in conduit("processors", "list").stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_processor_is_described(name: str) -> None:
    text = conduit("processors", "describe", f"builtin:{name}@v0.1.0").stdout
    described = json.loads(conduit("processors", "describe", name, "--format", "json").stdout)
    assert text.startswith(f"{name}: {described['summary']}")
    assert all(option["name"] in text for option in described["options"])


def test_a_changed_record_comes_out_in_the_form_in_which_it_came() -> None:
    structured, raw = (
        opencdc({"a": 1}, key="k", operation="update", metadata={"m": "1"}),
        opencdc("text", key={"id": 1}),
    )
    out = tried("field.set", "-s", "field=.Metadata.x", "-s", "value={{ .Operation }}=y", lines=[structured, "", raw])
    assert out == [
        {"records": [{**structured, "metadata": {"m": "1", "x": "update=y"}}]},
        {"records": [{**raw, "metadata": {"x": "create=y"}}]},
    ]


def test_one_record_may_become_none_many_or_an_error() -> None:
    assert tried("builtin:filter", lines=[opencdc(None)]) == [{"filtered": True}]
    [cloned] = tried("clone", "-s", "count=1", lines=[opencdc("x")])
    assert [each["metadata"] for each in cloned["records"]] == [{"clone.index": "0"}, {"clone.index": "1"}]
    assert tried("split", "-s", "field=.Payload.After.l", lines=[opencdc({"l": []})]) == [{"filtered": True}]
    assert tried("error", "-s", "message=no {{ .Payload.After.a }}", lines=[opencdc({"a": 1})]) == [{"error": "no 1"}]
    [nested] = tried("field.set", "-s", "field=.Payload.After.x", "-s", "value=1", lines=[opencdc("raw")])
    assert "refers into raw data" in nested["error"]


def test_a_condition_lets_pass_runs_or_fails() -> None:
    when = ("filter", "--condition", "{{ .Payload.After.drop }}")
    yes, no, neither = tried(*when, lines=[opencdc({"drop": True}), opencdc({"drop": "false"}), opencdc({"drop": 2})])
    assert yes == {"filtered": True}
    assert no["records"][0]["payload"]["after"] == {"drop": "false"}
    assert "must print true or false" in neither["error"]


def test_a_line_that_is_no_record_is_answered_and_the_next_goes_on() -> None:
    answers = tried("clone", "-s", "count=1", lines=["{", "[1]", opencdc([1]), {"position": "?"}, opencdc("x")])
    assert [list(each) for each in answers] == [["error"]] * 4 + [["records"]]
    assert "line 1" in answers[0]["error"]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("processors", "try", "fild.set"), UnknownPlugin, "did you mean field.set"),
        (("processors", "try", "clone"), ConfigError, "option 'count' is missing"),
        (("processors", "try", "clone", "-s", "count"), ConfigError, "KEY=VALUE"),
        (("processors", "try", "sql", "-s", "query=SELECT 1"), ConfigError, "whole micro-batch"),
        (("processors", "describe", "nothing"), UnknownPlugin, "no processor"),
        (("connectors", "describe", "nothing"), UnknownPlugin, "no connector"),
    ],
)
def test_what_is_wrong_is_said(words: tuple[str, ...], error: type[Exception], said: str) -> None:
    done = conduit(*words, input="")
    assert done.exit_code == 1
    assert isinstance(done.exception, error)
    assert said in str(done.exception)


def test_connectors_are_listed_and_described() -> None:
    listed = {each["name"]: each for each in json.loads(conduit("connectors", "list", "--format", "json").stdout)}
    assert listed["file"]["sides"] == ["source", "destination"]
    for name, each in listed.items():
        described = json.loads(conduit("connectors", "describe", f"builtin:{name}", "--format", "json").stdout)
        assert list(described) == each["sides"]
        text = conduit("connectors", "describe", name).stdout
        assert all(o["name"] in text for side in described.values() for o in side["options"])
