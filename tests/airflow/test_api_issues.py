"""Issues by the API: listed, decided about, sent again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.airflow.api_client import ASK, airflow, api, delivered, receivers

__all__ = ["airflow", "api", "delivered", "receivers"]
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
