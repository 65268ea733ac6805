"""Issues by the API: listed, decided about, sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.airflow.api_client import ASK, Airflow, airflow, api, broker_of, delivered
from tests.airflow.test_api_records import QUIET
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "api", "delivered"]
BASE = "/v1/pipelines/p/issues"


def test_an_issue_has_its_letters_and_a_state_that_is_decided(api: Any, delivered: None) -> None:
    found = api.get(BASE).json()
    (issue,) = found["items"]
    assert (issue["node"], issue["error_class"]) == ("destinations.web", "http 400")
    assert (issue["count"], issue["state"]) == (1, "open")
    letters = api.get("/v1/pipelines/p/dead-letters", params={"issue": issue["id"]}).json()
    assert letters["total"] == 1
    assert api.get("/v1/pipelines/p/dead-letters", params={"issue": "0123456789ab"}).json()["total"] == 0
    for state in ("acknowledged", "muted", "resolved", "open"):
        said = api.post(f"{BASE}/{issue['id']}", json={"state": state}, headers=ASK)
        assert said.json() == {"pipeline": "p", "issue": issue["id"], "state": state}
        (now,) = api.get(BASE, params={"state": state}).json()["items"]
        assert (now["decision"] or {}).get("by") == (None if state == "open" else "ann")
        assert api.get(BASE, params={"state": "open"}).json()["total"] == (state == "open")
    assert api.get(BASE, params={"issue": issue["id"]}).json()["total"] == 1
    assert api.get(BASE, params={"issue": "0123456789ab"}).json()["total"] == 0
    assert api.get(BASE, params={"issue": "x"}).status_code == 422
    api.post(f"{BASE}/{issue['id']}", json={"state": "muted", "until": "2020-01-01"}, headers=ASK)
    assert api.get(BASE, params={"state": "open"}).json()["total"] == 1, "its time is over"


def test_what_is_no_issue_or_no_state_is_refused(api: Any, delivered: None) -> None:
    assert api.post(f"{BASE}/0123456789ab", json={"state": "muted"}, headers=ASK).status_code == 404
    (issue,) = api.get(BASE).json()["items"]
    assert api.post(f"{BASE}/{issue['id']}", json={"state": "gone"}, headers=ASK).status_code == 422
    assert api.post(f"{BASE}/{issue['id']}", json={"state": "open"}).status_code == 403, "another site could ask"


@pytest.mark.proves("X2")
def test_a_redrive_takes_an_issue(api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.airflow.api import dead_letters
    from conduit_tasks.airflow.resend import build_resend_dag
    from conduit_tasks.pipeline.load import get_pipeline

    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dead_letters, "start", lambda *what: started.append(what))
    (issue,) = api.get(BASE).json()["items"]
    url = "/v1/pipelines/p/dead-letters/redrive"
    assert api.post(url, json={"issues": ["0123456789ab"]}, headers=ASK).json()["shares"] == []
    assert api.post(url, json={"issues": [issue["id"]]}, headers=ASK).json()["shares"][0]["letters"] == 1
    ((_, _, _, conf),) = started
    assert conf["issues"] == [issue["id"]]
    assert conf.keys() <= build_resend_dag(get_pipeline("p")).params.keys()


ALL = "/v1/issues"


@pytest.fixture
def failing(home: Path) -> list[str]:
    """Four pipelines, each with a task that failed, the last one newest."""
    from conduit_tasks.operate.issues import note_failure

    ids = [f"p{n}" for n in range(4)]
    for id in ids:
        write_pipeline(home, id, QUIET.replace("id: p\n", f"id: {id}\n"))
        log = {"dag": id, "run": "r", "task": "sources.in", "map_index": -1, "try": 1}
        note_failure(broker_of(id), "sources.in", "sources.in", "SourceError", f"{id}.txt is gone", "1", log)
    return ids


def of_all(api: Any, **params: Any) -> Any:
    answer = api.get(ALL, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_issues_of_all_pipelines_are_in_one_list(api: Any, delivered: None, failing: list[str]) -> None:
    found = of_all(api)
    assert [row["pipeline"] for row in found["items"]] == ["p3", "p2", "p1", "p0", "p"]
    refused, (own,) = found["items"][-1], api.get(BASE).json()["items"]
    assert refused == {"pipeline": "p", **own}
    assert {name: found[name] for name in ("total", "open", "pipelines", "withheld", "beyond", "unread")} == {
        **{"total": 5, "open": 5, "pipelines": 5, "withheld": 0, "beyond": 0},
        "unread": {},
    }
    # By pages, and by what is looked for
    part = of_all(api, offset=1, limit=2)
    assert ([row["pipeline"] for row in part["items"]], part["total"], part["offset"]) == (["p2", "p1"], 5, 1)
    assert [row["pipeline"] for row in of_all(api, kind="dead letters")["items"]] == ["p"]
    assert [row["pipeline"] for row in of_all(api, q="P2")["items"]] == ["p2"]
    assert [row["pipeline"] for row in of_all(api, q="http")["items"]] == ["p"]
    api.post(f"{BASE}/{own['id']}", json={"state": "acknowledged"}, headers=ASK)
    assert [row["pipeline"] for row in of_all(api, state="acknowledged")["items"]] == ["p"]
    assert of_all(api, state="open")["total"] == of_all(api)["open"] == 4
    task = "sources.in"
    broker_of("p0").issues.failed(found["items"][3]["id"], "2", {**_said(found["items"][3]), "by": task})
    assert next(row["pipeline"] for row in of_all(api, order="most")["items"]) == "p0"
    for wrong in (
        {"offset": 2_001},
        {"limit": 201},
        {"state": "gone"},
        {"kind": "x"},
        {"order": "x"},
        {"q": "x" * 129},
    ):
        assert api.get(ALL, params=wrong).status_code == 422, wrong


def _said(row: dict[str, Any]) -> dict[str, Any]:
    names = ("node", "error_class", "shape", "log")
    return {**{name: row[name] for name in names}, "error": row["sample"]["error"]}


def test_they_are_of_the_pipelines_that_this_user_may_see_and_whose_logs_they_may_read(
    api: Any, airflow: Airflow, failing: list[str]
) -> None:
    airflow.hidden, airflow.without_logs = ("p0",), ("p1",)
    found = of_all(api)
    assert [row["pipeline"] for row in found["items"]] == ["p3", "p2"]
    assert (found["total"], found["open"], found["pipelines"], found["withheld"]) == (2, 2, 2, 1)
    assert "p1" not in api.get(ALL).text
    airflow.logs = False
    assert (of_all(api)["items"], of_all(api)["withheld"]) == ([], 3)


def test_an_answer_says_how_many_pipelines_are_still_to_be_looked_through(
    api: Any, failing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import issues
    from conduit_tasks.dead_letters import columns
    from conduit_tasks.operate import all_issues
    from tests.operate.test_all_issues import dead, letter

    columns._kept.clear()
    before = of_all(api)["total"]
    for id in ("p1", "p2"):
        dead(id, letter(id, 1), destination="out")
    monkeypatch.setattr(issues, "WITHIN", 0.0)
    monkeypatch.setattr(all_issues, "LEAST", 1)
    assert [(of["pending"], of["total"] - before) for of in (of_all(api) for _ in range(3))] == [(1, 1), (0, 2), (0, 2)]


def test_no_more_than_can_be_paged_are_counted_as_pages(
    api: Any, failing: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import issues
    from conduit_tasks.operate import all_issues

    for module in (issues, all_issues):
        monkeypatch.setattr(module, "MOST", 3)
    found = of_all(api, limit=2, offset=2)
    assert ([row["pipeline"] for row in found["items"]], found["total"], found["beyond"]) == (["p1"], 3, 1)
