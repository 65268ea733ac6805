"""The API of records found by a field, and of their ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.ledger import history
from tests.airflow.api_client import PIPELINE, Airflow, airflow, api, delivered
from tests.micro_batch.harness import write_pipeline

__all__ = ["airflow", "api", "delivered"]
FIND = "/v1/pipelines/p/records/find"


def test_records_are_found_by_key_and_their_way_is_told(
    api: Any, delivered: None, airflow: Airflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.get(FIND).json()["fields"] == [".Key"]
    key = api.get("/v1/pipelines/p/dead-letters").json()["items"][0]["key"]
    found = api.get(FIND, params={"value": key}).json()
    assert (found["left"], found["more"], found["searched"]) == (0, False, {"micro_batches": 2, "records": 10})
    [place] = [item for item in found["items"] if (item["micro_batch"], item["seq"]) == (1, 3)]
    # Its history is looked for in one micro-batch
    url = f"/v1/pipelines/p/records/{place['id']}/history"
    [one] = api.get(url, params={"micro_batch": 1}).json()["places"]
    assert [step["step"] for step in one["steps"]] == ["read", "sealed", "attempt", "attempt", "acked"]
    assert [(target["destination"], target["outcome"]) for target in one["targets"]] == [
        ("file", "acked"),
        ("web", "nacked"),
    ]
    assert (one["state"], one["id"], "place" in one) == ("nacked", place["id"], False)
    assert api.get(url, params={"micro_batch": 2}).status_code in (200, 404)
    # One call is bounded, and the next one goes on
    history._searches.clear()
    monkeypatch.setattr(history, "AT_ONCE", 1)
    assert [api.get(FIND, params={"value": "none"}).json()["left"] for _ in range(2)] == [1, 0]
    # A field without an index is refused, and whoever may not see records finds none
    wrong = api.get(FIND, params={"field": ".Payload.After.n", "value": "1"})
    assert (wrong.status_code, "add .Payload.After.n to `index`" in wrong.json()["detail"]) == (400, True)
    assert api.get(FIND, params={"value": "x" * 9_000}).status_code == 422
    airflow.logs = False
    assert api.get(FIND, params={"value": key}).status_code == 403
    assert api.get(url).status_code == 403


def test_a_search_for_what_is_masked_since_is_refused(api: Any, delivered: None, home: Path) -> None:
    key = api.get("/v1/pipelines/p/dead-letters").json()["items"][0]["key"]
    assert api.get(FIND, params={"value": key}).json()["items"]
    masked = PIPELINE.replace("URL", "http://localhost:1/").replace(
        "    connectors:", "    mask: [.Key]\n    connectors:"
    )
    write_pipeline(home, "p", masked)
    said = api.get(FIND, params={"value": key})
    assert (said.status_code, ".Key is masked" in said.json()["detail"]) == (400, True)
    assert api.get(FIND).json()["fields"] == []
