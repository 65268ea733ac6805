"""The last records and trials by the API: what is answered, to whom, and what a changed text may do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.hidden import without_secrets
from tests.airflow.api_client import ASK, Airflow, airflow, api, delivered
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "api", "delivered"]
RECORDS, TRY = "/v1/pipelines/p/records", "/v1/pipelines/p/records/try"


def tried(api: Any, **body: Any) -> Any:
    return api.post(TRY, json=body, headers=ASK)


def said(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    assert answer.json()["error"] is None, answer.json()["error"]
    return [f"{s['node']} {s.get('processor', s['step'])} {s['outcome']}" for s in answer.json()["steps"]]


@pytest.mark.slow
def test_the_last_records_are_listed_with_their_answers_and_records_are_tried(api: Any, delivered: None) -> None:
    found = api.get(RECORDS, params={"node": "destinations.web", "last": 8}).json()
    assert len(found["records"]) == 8
    assert [each["record"]["payload"]["after"]["n"] for each in found["records"]] == [9, 8, 7, 6, 5, 4, 3, 2]
    refused = found["records"][6]
    assert (refused["state"], refused["answer"]["error_class"]) == ("nacked", "http 400")
    assert api.get(RECORDS).json()["node"] == "processors"
    wrong = api.get(RECORDS, params={"node": "x"})
    assert (wrong.status_code, "has no node x" in wrong.json()["detail"]) == (400, True)
    assert api.get(RECORDS, params={"last": 101}).status_code == 422

    # And one of them, a dead letter, and a pasted record are tried
    [letter] = api.get("/v1/pipelines/p/dead-letters").json()["items"]
    key = "/".join(str(letter[name]) for name in ("destination", "epoch", "micro_batch", "seq", "ord"))
    assert said(tried(api, letter=key)) == ["destinations.web sent sent"]
    place = api.get(RECORDS).json()["records"][0]["place"]
    # And with a changed text of the file, in which nothing calls anybody and no variable is seen
    text = api.get("/v1/pipelines/p/file").json()["text"]
    assert "hush" not in text, "the URL of the target has a secret"
    more = (
        "    processors:\n"
        "      - {id: set, plugin: field.set, settings: {field: .Metadata.home, value: '${CONDUIT_HOME}'}}\n"
        "      - {id: call, plugin: webhook.http, settings: {request.url: 'http://localhost:1'}}\n"
    )
    odd = {"n": 10**30, "t": "\u0000 \U0001f600"}
    answer = tried(api, record=json.dumps({"payload": {"after": odd}}), file=text + more)
    assert said(answer)[:2] == ["processors set changed", "processors call left out"]
    shown = answer.json()["steps"][0]["after"][0]
    assert shown["metadata"]["home"] == "${CONDUIT_HOME}"
    assert shown["payload"]["after"] == odd, "every digit and character"
    assert said(tried(api, place=place))[0] == "destinations.file trigger wanted"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 422, "give exactly one of record, letter and place"),
        ({"record": "{}", "letter": "web/0/1/1/0"}, 422, "give exactly one of record, letter and place"),
        ({"letter": "web/0/1"}, 422, "destination/epoch/micro-batch/seq/ordinal"),
        ({"record": "{}", "calls": True}, 422, "Extra inputs are not permitted"),
        ({"record": "x" * (4 << 20)}, 413, "4 MiB"),
    ],
)
def test_what_is_asked_wrongly_is_a_problem(
    body: dict[str, Any], status: int, says: str, api: Any, home: Path, airflow: Airflow
) -> None:
    write_pipeline(home, "p", QUIET)
    answer = tried(api, **body)
    assert (answer.status_code, says in answer.json()["detail"]) == (status, True), answer.text


QUIET = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.jsonl}}
      - {id: out, type: destination, plugin: log}
"""


def test_a_third_one_at_a_time_has_to_wait_for_its_turn(api: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.airflow.api import records

    write_pipeline(home, "p", QUIET)
    monkeypatch.setattr(records, "PATIENCE", 0.01)
    monkeypatch.setattr(records, "tried", lambda ask: {"pipeline": ask.pipeline})
    assert tried(api, record="{}").json() == {"pipeline": "p"}
    with records._turns, records._turns:
        answer = tried(api, record="{}")
        assert (answer.status_code, "others look at records at the moment" in answer.json()["detail"]) == (503, True)
        for path in ("find?value=x", f"{'a' * 32}/history"):
            assert api.get(f"{RECORDS}/{path}").status_code == 503
    assert tried(api, record="{}").status_code == 200


def test_the_text_of_a_file_is_shown_to_who_may_read_the_code_of_all_its_dags(
    api: Any, airflow: Airflow, home: Path
) -> None:
    write_pipeline(home, "p", QUIET + QUIET.partition("pipelines:\n")[2].replace("id: p", "id: p1"))
    found = api.get("/v1/pipelines/p/file").json()
    assert (found["file"], "id: p1" in found["text"]) == ("p.yaml", True)
    airflow.code = ("p",)
    assert api.get("/v1/pipelines/p/file").status_code == 403
    airflow.code = ("p", "p1")
    assert api.get("/v1/pipelines/p/file").status_code == 200


def test_secrets_in_the_text_of_a_file_are_hidden_and_the_rest_stays_as_it_is() -> None:
    text = (
        "a: &x {password: hush, token: [hush1, {b: hush2}], carrier: 'no'}  # kept\n"
        "again: *x\n"
        "env: {apiKey: '${KEY}', secret: }\n"
        "url: https://ann:hush@example.org:8443/path?hush\n"
        'said: "see https://example.org/a"\n'
        "block: |\n  line\n"
    )
    shown = without_secrets(text)
    assert shown == (
        "a: &x {password: '***', token: ['***', {b: '***'}], carrier: 'no'}  # kept\n"
        "again: *x\n"
        "env: {apiKey: '${KEY}', secret: }\n"
        "url: 'https://example.org:8443/***'\n"
        'said: "see https://example.org/a"\n'
        "block: |\n  line\n"
    )
    with pytest.raises(ConfigError, match="the file is not shown"):
        without_secrets("a: [")
