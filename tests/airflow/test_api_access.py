"""The plugin's API: who may see and do what, and what a browser may be made to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from conduit_tasks.topology import Breaker
from tests.airflow.api_client import ASK, Airflow, airflow, api, broker_of, delivered
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "api", "delivered"]


def test_whoever_may_only_look_changes_nothing_and_sees_only_what_is_shown_to_them(
    api: Any, airflow: Airflow, delivered: None
) -> None:
    airflow.methods = ("GET",)
    assert api.get("/v1/pipelines/p").status_code == 200
    for change in ("start", "stop", "dead-letters/redrive", "replay", "issues/0123456789ab"):
        assert api.post(f"/v1/pipelines/p/{change}", json={}, headers=ASK).status_code == 403
    assert api.put("/v1/pipelines/p/positions", json={"source": "in"}, headers=ASK).status_code == 403
    airflow.hidden = ("p",)
    for path in (
        "",
        "/topology",
        "/micro-batches",
        "/dead-letters",
        "/issues",
        "/series",
        "/live",
        "/positions",
        "/error",
        "/destinations",
        "/destinations/web",
        "/ledger",
        "/replays",
        "/records",
        "/file",
        "/records/abcdef0123/history",
    ):
        assert api.get(f"/v1/pipelines/p{path}").status_code == 403
    assert api.get("/v1/pipelines").json()["total"] == 0
    assert broker_of("p").lifecycle.status().status == "running"


def test_records_and_what_targets_answered_are_shown_to_who_may_read_logs(
    api: Any, airflow: Airflow, delivered: None
) -> None:
    airflow.logs = False
    for path in ("", "/topology", "/micro-batches", "/positions", "/error", "/destinations", "/series"):
        assert api.get(f"/v1/pipelines/p{path}").status_code == 200, path
    hidden = ("/ledger", "/records/abcdef0123/history", "/dead-letters", "/dead-letters/web/0/1/1/0", "/issues")
    for path in (*hidden, "/records", "/file"):
        assert api.get(f"/v1/pipelines/p{path}").status_code == 403, path
    assert api.post("/v1/pipelines/p/records/try", json={"record": "{}"}, headers=ASK).status_code == 403
    assert "/v1/pipelines/{pipeline_id}/ledger" in api.get("/openapi.json").json()["paths"]


def test_an_error_is_quoted_to_who_may_read_logs_only(api: Any, airflow: Airflow, delivered: None) -> None:
    """Given a pipeline and a destination that stopped with what a target answered, then one who may only see runs
    learns which node failed, by which class of error and when."""
    broker = broker_of("p")
    broker.lifecycle.fail("destinations.web", "403: token abc is not valid", "Refused", 1)
    broker.lifecycle.stop_destination("web", "403: token abc is not valid", "Refused", 1)
    paths = ("", "/error", "/destinations", "/destinations/web")
    for logs in (True, False):
        airflow.logs = logs
        for text in [api.get(f"/v1/pipelines/p{path}").text for path in paths] + [api.get("/v1/pipelines").text]:
            assert ("token abc" in text) is logs, text
            assert '"Refused"' in text
    found = api.get("/v1/pipelines/p/error").json()["error"]
    assert found["node"] == "destinations.web"
    assert "logs" in found["error"]


def test_what_opened_a_breaker_is_quoted_to_who_may_read_logs_only(
    api: Any, airflow: Airflow, delivered: None, home: Path
) -> None:
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    breaker = "delivery: {timeout: 20s, breaker: {failures: 1}}"
    write_pipeline(home, "p", text.replace("delivery: {timeout: 20s}", breaker))
    broker, options = broker_of("p"), Breaker(failures=1, pause=60.0)
    with broker.leases.acquire("destinations.web", "run") as lease:
        broker.breakers.trip(
            *("web", lease.token, "1", options),
            **{"failures": 1, "fresh": False, "probe": False, "tried": 0, "retry_after": 0.0, "error": "503 token abc"},
        )
    for logs in (True, False):
        airflow.logs = logs
        said = api.get("/v1/pipelines/p")
        assert ("token abc" in said.text) is logs
        (web,) = [d for d in said.json()["destinations"] if d["id"] == "web"]
        assert web["breaker"]["opened"] == 1


def test_why_a_destination_does_not_answer_is_quoted_to_who_may_read_logs_only(
    api: Any, airflow: Airflow, delivered: None, home: Path
) -> None:
    # Given a run of another DAG that met a target which does not answer
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    write_pipeline(home, "p", re.sub(r'url: ".*"', 'url: "http://127.0.0.1:1"', text))
    events(home / "data", 5, start=10)
    run_once("p", "other/manual__1")
    # Then it is told, with the run, to whoever may read logs, and to others that it is so
    for logs in (True, False):
        airflow.logs = logs
        said = api.get("/v1/pipelines/p").json()
        outage = next(d for d in said["destinations"] if d["id"] == "web")["outage"]
        assert ("Connection refused" in outage["error"]) is logs, outage
        assert ("logs" in outage["error"]) is not logs
        assert (outage["dag_id"], outage["run_id"], outage["task_id"]) == ("other", "manual__1", None)
        assert said["at"] >= outage["at"] >= outage["since"]
        assert (said["bottleneck"]["node"], said["bottleneck"]["rule"]) == ("destinations.web", "down")
    # And the other DAG's name to whoever may see it
    airflow.hidden = ("other",)
    (web,) = [d for d in api.get("/v1/pipelines/p/destinations").json()["items"] if d["id"] == "web"]
    assert (web["outage"]["dag_id"], web["outage"]["run_id"]) == (None, None)


def test_a_run_of_another_dag_that_holds_a_lease_is_named_to_who_may_see_that_dag(
    api: Any, airflow: Airflow, delivered: None
) -> None:
    leases = broker_of("p").leases
    with (
        leases.acquire("destinations.web", "other/manual__1@host:12"),
        leases.acquire("destinations.file", "scheduled__2026-11-25T10:00:00+00:00@host:13"),
        leases.acquire("sources.in", "redrive of ann@host:14"),
    ):
        held = api.get("/v1/pipelines/p").json()["holders"]
        assert held["destinations.file"] == {
            "dag_id": "p",
            "run_id": "scheduled__2026-11-25T10:00:00+00:00",
            "task_id": "destinations.file",
        }
        assert held["destinations.web"] == {"dag_id": "other", "run_id": "manual__1", "task_id": None}
        nothing = {"dag_id": None, "run_id": None, "task_id": None}
        assert held["sources.in"] == nothing, "it is no run of Airflow"
        airflow.hidden = ("other",)
        assert api.get("/v1/pipelines/p").json()["holders"]["destinations.web"] == nothing


def test_nobody_who_is_not_signed_in_gets_anything(home: Path) -> None:
    from fastapi.testclient import TestClient

    from conduit_tasks.airflow.api.app import app

    with TestClient(app) as client:
        for route in app.openapi()["paths"]:
            for method in app.openapi()["paths"][route]:
                url = route.replace("{record_id}", "abcdef0123").replace("{issue_id}", "0123456789ab")
                said = client.request(method, url, headers=ASK, json={})
                assert said.status_code in (401, 422), route
                assert said.status_code == 401 or "{" in route
        for page in ("", "conduit.js"):
            assert client.get(f"/pages/{page}").status_code == 401
        for described in ("/openapi.json", "/docs", "/redoc"):
            assert client.get(described).status_code in (401, 404), described
        assert client.get("/v1/pipelines/p").status_code == 401


def test_another_site_cannot_make_a_browser_change_anything(api: Any, delivered: None) -> None:
    stop = "/v1/pipelines/p/stop"
    assert api.post(stop, json={}).status_code == 403
    assert api.post(stop, json={}, headers={**ASK, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert broker_of("p").lifecycle.status().status == "running"
    assert api.post(stop, json={}, headers={**ASK, "Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_the_pages_run_nothing_but_their_own_script(api: Any) -> None:
    from conduit_tasks.airflow.api.app import POLICY

    said = api.get("/pages/")
    assert said.headers["content-security-policy"] == POLICY
    assert "script-src 'self'" in POLICY
    assert "unsafe" not in POLICY
    script = api.get("/pages/conduit.js").text + api.get("/pages/drawing.js").text + api.get("/pages/replays.js").text
    for way_in in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way_in not in script
    assert api.get("/pages/conduit.css").headers["content-type"].startswith("text/css")
    assert api.get("/pages/..%2Fplugin.py").status_code == 404


def test_every_change_needs_a_word_that_no_other_site_can_send(api: Any, delivered: None) -> None:
    paths = api.get("/openapi.json").json()["paths"]
    changes = [(method, path) for path, of in paths.items() for method in of if method != "get"]
    assert len(changes) == 7
    for method, path in changes:
        said = api.request(method, path.replace("{pipeline_id}", "p"), json={})
        assert (said.status_code, "X-Conduit-Request" in said.text) == (403, True), path
    # A bearer token is no cookie, which a browser would send by itself
    stop, bearer = "/v1/pipelines/p/stop", {"Authorization": "Bearer abc"}
    assert api.post(stop, json={}, headers={**bearer, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert api.post(stop, json={}, headers={**bearer, "Sec-Fetch-Site": "none"}).status_code == 200
    assert api.post(stop, json={}, headers={**ASK, "Authorization": "Basic abc"}).status_code == 200


def test_figures_are_of_what_its_reader_may_see(api: Any, airflow: Airflow, delivered: None) -> None:
    assert 'pipeline="p"' in api.get("/v1/metrics").text
    airflow.hidden = ("p",)
    assert 'pipeline="p"' not in api.get("/v1/metrics").text


def test_nobody_learns_which_pipelines_there_are(api: Any, airflow: Airflow, delivered: None) -> None:
    airflow.methods = ()
    assert [api.get(f"/v1/pipelines/{id}").status_code for id in ("p", "none")] == [403, 403]


def test_no_answer_is_kept_or_repeats_what_was_sent(api: Any, delivered: None) -> None:
    said = api.get("/v1/pipelines")
    assert [said.headers[name] for name in ("cache-control", "x-content-type-options", "referrer-policy")] == [
        "no-store",
        "nosniff",
        "same-origin",
    ]
    assert api.get("/pages/conduit.js").headers["cache-control"] == "no-cache"
    for wrong in (api.get("/v1/pipelines?limit=hush"), api.post("/v1/pipelines/p/stop", json="hush", headers=ASK)):
        assert (wrong.status_code, "hush" in wrong.text) == (422, False)
