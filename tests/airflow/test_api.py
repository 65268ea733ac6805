"""The plugin's API: what it shows and does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.airflow.api_client import ASK, PIPELINE, Airflow, airflow, api, broker_of, delivered
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "api", "delivered"]


def test_a_pipeline_shows_status_cursors_lag_and_counts_and_no_settings(api: Any, delivered: None) -> None:
    said = api.get("/v1/pipelines/p")
    found = said.json()
    assert (found["status"], found["error"], found["sealed"], found["dag_id"]) == ("running", None, 2, "p")
    web = next(d for d in found["destinations"] if d["id"] == "web")
    assert (web["cursor"], web["delivered"], web["dead"], web["task_id"]) == (2, 9, 1, "destinations.web")
    assert web["lag"] == {"micro_batches": 0, "records": 0, "bytes": 0, "age": 0.0}
    graph = api.get("/v1/pipelines/p/topology")
    assert [d["id"] for d in graph.json()["destinations"]] == ["file", "web"]
    assert "hush" not in said.text + graph.text
    positions = api.get("/v1/pipelines/p/positions").json()["sources"]
    assert positions[0]["planned"] == positions[0]["acked"] != {}


def test_destinations_and_first_errors_have_places_of_their_own(api: Any, delivered: None) -> None:
    found = api.get("/v1/pipelines/p/destinations").json()
    assert [(d["id"], d["cursor"]) for d in found["items"]] == [("file", 2), ("web", 2)]
    assert api.get("/v1/pipelines/p/destinations/web").json()["lag"]["records"] == 0
    unknown = api.get("/v1/pipelines/p/destinations/wob")
    assert (unknown.status_code, unknown.json()["detail"]) == (404, "p has no destination wob; see …/destinations")
    assert api.get("/v1/pipelines/p/error").json()["error"] is None
    broker_of("p").lifecycle.fail("destinations.web", "it is full", "Unavailable")
    told = api.get("/v1/pipelines/p/error").json()
    assert (told["status"], told["error"]["error"], told["destinations"]) == ("degraded", "it is full", {})


def test_positions_are_set_only_while_the_pipeline_stands_still(api: Any, delivered: None) -> None:
    place = {"source": "in", "forget": ["data/a.jsonl"]}
    (before,) = api.get("/v1/pipelines/p/positions").json()["sources"]
    assert list(before["planned"]) == ["data/a.jsonl"]
    refused = api.put("/v1/pipelines/p/positions", json=place, headers=ASK)
    assert (refused.status_code, "conduit stop p" in refused.json()["detail"]) == (409, True)
    broker_of("p").lifecycle.force_stop()
    assert api.put("/v1/pipelines/p/positions", json=place).status_code == 403
    assert api.put("/v1/pipelines/p/positions", json={**place, "source": "on"}, headers=ASK).status_code == 400
    would = api.put("/v1/pipelines/p/positions", json={**place, "dry_run": True}, headers=ASK)
    assert (would.json()["after"], broker_of("p").positions.planned("in")) == ({}, before["planned"])
    done = api.put("/v1/pipelines/p/positions", json=place, headers=ASK)
    assert (done.status_code, done.json()["before"], done.json()["after"]) == (200, before["planned"], {})
    assert broker_of("p").positions.planned("in") == {}


def test_lists_are_paged_and_filtered_on_the_server(api: Any, home: Path, airflow: Airflow) -> None:
    airflow.hidden = ("p7",)
    for n in range(12):
        text = PIPELINE.replace("URL", "http://localhost:1/").replace("id: p\n", f"id: p{n}\n")
        write_pipeline(home, f"p{n}", text)
    broker_of("p3").lifecycle.force_stop()

    found = api.get("/v1/pipelines", params={"offset": 10, "limit": 5}).json()
    assert (found["total"], [row["id"] for row in found["items"]]) == (11, ["p9"])
    assert [row["id"] for row in api.get("/v1/pipelines", params={"q": "P1"}).json()["items"]] == ["p1", "p10", "p11"]
    stopped = api.get("/v1/pipelines", params={"status": "stopped"}).json()
    assert (stopped["total"], stopped["items"][0]["id"]) == (1, "p3")
    assert [row["id"] for row in api.get("/v1/pipelines", params={"dag": "p5"}).json()["items"]] == ["p5"]


def test_micro_batches_come_newest_first_with_their_delivery_per_destination(api: Any, delivered: None) -> None:
    found = api.get("/v1/pipelines/p/micro-batches", params={"limit": 1}).json()
    assert (found["total"], len(found["items"])) == (2, 1)
    newest = found["items"][0]
    assert (newest["number"], newest["destinations"]["web"]["delivered"]) == (2, True)
    assert [m["number"] for m in api.get("/v1/pipelines/p/micro-batches?offset=1").json()["items"]] == [1]


def test_a_dead_letter_is_found_by_filter_with_its_record_and_its_history(api: Any, delivered: None) -> None:
    base = "/v1/pipelines/p/dead-letters"
    found = api.get(base, params={"destination": "web", "error_class": "http 400", "since": "2020-01-01"}).json()
    assert (found["total"], found["classes"]) == (1, {"http 400": 1})
    letter = found["items"][0]
    assert api.get(base, params={"key": letter["key"]}).json()["total"] == 1
    for empty in ({"destination": "file"}, {"error_class": "http 500"}, {"until": "2020-01-01"}, {"key": "other"}):
        assert api.get(base, params=empty).json()["total"] == 0

    name = "/".join(str(letter[part]) for part in ("destination", "epoch", "micro_batch", "seq", "ord"))
    one = api.get(f"{base}/{name}").json()
    assert one["record"]["payload"]["after"]["n"] == 3
    history = api.get(f"/v1/pipelines/p/records/{one['id']}/history").json()
    assert {(a["destination"], a["outcome"]) for a in history["attempts"]} == {("file", "acked"), ("web", "nacked")}
    assert [place["state"] for place in history["places"]] == ["nacked"], "as a whole: one of them nacked it"


@pytest.mark.proves("C15", "C16")
def test_a_pipeline_is_stopped_and_started(api: Any, delivered: None) -> None:
    said = api.post("/v1/pipelines/p/stop", json={"force": True}, headers=ASK)
    assert said.json()["status"] == "stopped"
    assert api.post("/v1/pipelines/p/start", json={}, headers=ASK).json()["status"] == "running"
    graceful = api.post("/v1/pipelines/p/stop", json={}, headers=ASK).json()
    assert graceful["status"] in ("stopping", "stopped")


@pytest.mark.proves("X1")
def test_one_destination_of_an_isolated_pipeline_is_stopped_and_started_alone(
    api: Any, home: Path, delivered: None
) -> None:
    stop, start = "/v1/pipelines/p/stop", "/v1/pipelines/p/start"
    refused = api.post(stop, json={"destination": "web"}, headers=ASK)
    assert (refused.status_code, "isolate: true" in refused.json()["detail"]) == (400, True)
    path = home / "include/pipelines/p.yaml"
    path.write_text(path.read_text().replace("    connectors:", "    isolate: true\n    connectors:"))
    assert api.post(stop, json={"destination": "web"}, headers=ASK).json()["status"] == "running"
    found = api.get("/v1/pipelines/p").json()
    assert [d["status"] for d in found["destinations"]] == ["running", "stopped"]
    assert api.post(start, json={"destination": "web"}, headers=ASK).status_code == 200
    assert [d["status"] for d in api.get("/v1/pipelines/p").json()["destinations"]] == ["running", "running"]


@pytest.mark.proves("X2")
def test_a_redrive_says_what_would_go_and_starts_a_run_of_its_dag(
    api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import dead_letters

    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(dead_letters, "start", lambda *what: started.append(what))
    url = "/v1/pipelines/p/dead-letters/redrive"
    dry = api.post(url, json={"dry_run": True, "classes": ["http 400"]}, headers=ASK).json()
    assert (dry["shares"], dry["run_id"]) == ([{"destination": "web", "letters": 1, "parked": 0}], None)
    nothing = api.post(url, json={"destination": "file", "until": "2020-01-01T00:00:00Z"}, headers=ASK).json()
    assert (nothing["shares"], started) == ([], [])
    done = api.post(url, json={"since": "2020-01-01T00:00:00", "classes": ["http 400"]}, headers=ASK).json()
    ((dag, run, user, conf),) = started
    assert (dag, run, user) == ("p.resend", done["run_id"], "ann")
    # What the run is given is what its DAG takes
    from conduit_tasks.airflow.resend import build_resend_dag
    from conduit_tasks.pipeline.load import get_pipeline

    params = build_resend_dag(get_pipeline("p")).params
    assert conf.keys() <= params.keys()
    assert (conf["since"], conf["classes"]) == ("2020-01-01T00:00:00+00:00", ["http 400"])
    assert api.post(url, json={"class": "http 400"}, headers=ASK).status_code == 422


@pytest.mark.proves("X3")
def test_a_replay_starts_a_run_of_its_dag_and_shows_what_became_of_it(
    api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import replays

    started: list[tuple[Any, ...]] = []
    monkeypatch.setattr(replays, "start", lambda *what: started.append(what))
    url, march = "/v1/pipelines/p/replay", {"from": "2013-03-01", "to": "2013-04-01"}
    done = api.post(url, json={**march, "destinations": ["web"], "what": "all"}, headers=ASK).json()
    api.post(url, json={**march, "dry_run": True}, headers=ASK)
    (dag, run, user, conf), (*_, dry) = started
    assert (dag, run, user) == ("p.resend", done["run_id"], "ann")
    # What the run is given is what its DAG takes
    from conduit_tasks.airflow.resend import build_resend_dag
    from conduit_tasks.pipeline.load import get_pipeline

    assert conf.keys() <= build_resend_dag(get_pipeline("p")).params.keys()
    assert conf == {**march, "destinations": ["web"], "what": "all", "dry-run": False}
    assert (dry["dry-run"], dry["destinations"]) == (True, ["file", "web"])
    # What is wrong is named, and starts nothing
    for wrong in ({"to": "2013-02-01"}, {"destinations": ["x"]}, {"from": "soon"}):
        assert api.post(url, json={**march, **wrong}, headers=ASK).status_code == 400
    assert api.post(url, json={**march, "what": "some"}, headers=ASK).status_code == 422
    assert len(started) == 2
    told = {"plan": {"read": 9, "chosen": 4}, "destinations.web": {"delivered": 4}, "other": None}
    run = {"run_id": "b", "conf": {}, "interval": ["2013-03-01", "2013-03-02"], "results": told}
    known = [{**run, "dag_id": dag, "state": "running"} for dag in ("p.resend", "p.replay")]
    kinds: list[bool] = []

    def results(dags: list[str], _: int, wanted: Any) -> list[dict[str, Any]]:
        kinds.extend(wanted({}, run_type) for run_type in ("backfill", "manual"))
        return [one for one in known if one["dag_id"] in dags]

    monkeypatch.setattr(replays, "results", results)
    found, earlier = api.get("/v1/pipelines/p/replays").json()["items"]
    assert (found["from"], found["to"], found["what"]) == ("2013-03-01", "2013-03-02", "missing")
    assert (found["found"]["chosen"], found["sent"]) == (4, {"web": {"delivered": 4}})
    assert (found["dag_id"], found["state"], kinds) == ("p.resend", "running", [True, False])
    # Airflow does not go on with the runs of a DAG that is none any more
    assert (earlier["dag_id"], earlier["state"]) == ("p.replay", "left behind")


@pytest.mark.proves("X5")
def test_the_ledger_is_read_newest_first(api: Any, delivered: None) -> None:
    found = api.get("/v1/pipelines/p/ledger", params={"destination": "web", "limit": 2}).json()
    assert (found["total"], len(found["items"])) == (4, 2)
    assert (found["items"][0]["micro_batch"], found["items"][0]["outcome"]) == (2, "acked")
    older = api.get("/v1/pipelines/p/ledger", params={"destination": "web", "offset": 2}).json()["items"]
    assert {row["micro_batch"] for row in older} == {1}
    assert api.get("/v1/pipelines/p/ledger", params={"micro_batch": 9}).json()["total"] == 0


def test_a_file_that_changed_is_read_again_and_the_others_are_not(
    api: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.airflow.api import files

    for n in range(3):
        write_pipeline(home, f"p{n}", PIPELINE.replace("URL", "http://localhost:1/").replace("id: p\n", f"id: p{n}\n"))
    assert api.get("/v1/pipelines").json()["total"] == 3
    read: list[str] = []
    load = files.load_file
    monkeypatch.setattr(files, "load_file", lambda file, **how: [read.append(file.name), load(file, **how)][1])
    text = (home / "include/pipelines/p1.yaml").read_text()
    write_pipeline(home, "p1", text.replace("id: p1\n", "id: p1\n    description: new\n"))
    assert api.get("/v1/pipelines").json()["items"][1]["description"] == "new"
    assert read == ["p1.yaml"]


def test_a_ledger_that_was_not_looked_through_says_so(
    api: Any, delivered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a bound of one attempt, then what is asked for further back is found all the same."""
    from conduit_tasks.ledger import store

    monkeypatch.setattr(store, "FILES", 1)
    monkeypatch.setattr(store, "ENOUGH", 1)
    url, web = "/v1/pipelines/p/ledger", {"destination": "web"}
    first = api.get(url, params={**web, "limit": 1}).json()
    assert (first["total"], [row["micro_batch"] for row in first["items"]]) == (None, [2])
    assert [row["micro_batch"] for row in api.get(url, params={**web, "offset": 2}).json()["items"]] == [1, 1]
    assert api.get(url, params={**web, "limit": 200}).json()["total"] == 4


def test_a_history_that_is_asked_for_again_reads_only_what_is_new(
    api: Any, delivered: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conduit_tasks.ledger import history
    from conduit_tasks.spool.spool import Spool

    read: list[Any] = []
    whole = Spool.read
    monkeypatch.setattr(Spool, "read", lambda self, file, **how: [read.append(file), whole(self, file, **how)][1])
    monkeypatch.setattr(history, "AT_ONCE", 1)
    letter = api.get("/v1/pipelines/p/dead-letters").json()["items"][0]
    path = f"/v1/pipelines/p/records/{letter['id']}/history"
    read.clear()
    # Given a bound of one record, each look goes through one micro-batch, the newest first
    looks = [api.get(path).json() for _ in range(3)]
    assert [(look["left"], len(look["places"])) for look in looks] == [(1, 0), (0, 1), (0, 1)]
    assert len(read) == 2
    assert {a["outcome"] for a in looks[2]["attempts"]} == {"acked", "nacked"}
    # When there is a new micro-batch, only that one is read
    events(home / "data", 5, 10)
    run_once("p", "third")
    read.clear()
    assert api.get(path).json()["left"] == 0
    assert len(read) == 1
    # And an id that nothing has is unknown only once everything was gone through
    nothing = "/v1/pipelines/p/records/abcdef0123/history"
    assert [api.get(nothing).status_code for _ in range(3)] == [200, 200, 404]


def test_an_error_is_a_problem_that_says_what_to_do(api: Any, delivered: None, home: Path) -> None:
    for path, status, words in (
        ("/v1/pipelines/none", 404, "conduit validate"),
        ("/v1/pipelines/p/records/abcdef0123/history", 404, "spool.retention"),
        ("/v1/pipelines/p/dead-letters/web/0/9/9/0", 404, "list them again"),
        ("/v1/pipelines?limit=0", 422, "limit"),
        ("/v1/pipelines?limit=100000", 422, "limit"),
        ("/v1/pipelines/p/micro-batches?offset=-1", 422, "offset"),
        ("/v1/pipelines/p/dead-letters?destination=../x", 422, "destination"),
        ("/v1/pipelines/p/dead-letters?since=soon", 422, "since"),
        ("/v1/pipelines/p%20q", 422, "pipeline_id"),
        ("/nowhere", 404, "Not Found"),
    ):
        said = api.get(path)
        assert (said.status_code, said.headers["content-type"]) == (status, "application/problem+json"), path
        assert words in said.json()["detail"], said.text
    wrong = api.post("/v1/pipelines/p/start", json={"destination": "moon"}, headers=ASK)
    assert (wrong.status_code, "it has file, web" in wrong.json()["detail"]) == (400, True)
    assert api.post("/v1/pipelines/p/stop", json={"forse": True}, headers=ASK).status_code == 422


def test_a_broker_that_cannot_be_reached_is_503(api: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.settings import forget

    write_pipeline(home, "p", PIPELINE.replace("URL", "http://localhost:1/"))
    monkeypatch.setenv("CONDUIT_REDIS_URL", f"unix://{home}/nobody.sock")
    forget()
    said = api.get("/v1/pipelines/p")
    assert (said.status_code, said.headers["content-type"]) == (503, "application/problem+json")
