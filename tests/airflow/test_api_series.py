"""Curves over time, and the list of many pipelines."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from conduit_tasks.broker.series import COARSE
from tests.airflow.api_client import PIPELINE, Airflow, airflow, api, broker_of, delivered
from tests.faults.parts import events
from tests.micro_batch.harness import run_once, write_pipeline

__all__ = ["airflow", "api", "delivered"]


def test_curves_say_what_was_read_delivered_and_refused_when_and_how_long_it_took(api: Any, delivered: None) -> None:
    for seconds, step in ((None, 10), (86_400, 300), (COARSE.span, 1_800)):
        found = api.get("/v1/pipelines/p/series", params={"seconds": seconds} if seconds else {}).json()
        assert found["step"] == step
        times = found["times"]
        assert times[-1] <= found["at"] < times[-1] + step
        assert all(b - a == step for a, b in pairwise(times))
        assert (sum(found["total"]["read"]), sum(found["total"]["micro_batches"])) == (10, 2)
        assert sum(found["sources"]["in"]["read"]) == 10
        web = found["destinations"]["web"]
        assert {name: sum(web[name]) for name in ("delivered", "nacked", "retried")} == {
            "delivered": 9,
            "nacked": 1,
            "retried": 0,
        }
        assert web["lag"][-1] == web["age"][-1] == web["lag_bytes"][-1] == 0
        assert all(len(curve) == len(times) for curve in web.values())
        assert 0 < max(p for p in web["p99"] if p is not None) < 86_400


def test_a_lag_that_grows_shows_with_the_age_of_its_oldest_record(api: Any, delivered: None, home: Path) -> None:
    # Given a micro-batch of five records that was read, and was delivered to the file alone
    from tests.faults.parts import events
    from tests.micro_batch import harness

    broker_of("p").lifecycle.halt_destination("web")
    events(home / "data", 15)
    harness.run_once("p", "third")
    found = api.get("/v1/pipelines/p/series").json()["destinations"]
    assert (found["web"]["lag"][-1], found["file"]["lag"][-1]) == (5, 0)
    assert found["web"]["lag_bytes"][-1] > 0
    assert found["web"]["lag"][0] == 0, "nothing was there two hours ago"
    assert found["web"]["age"][-1] in (0, 10, 20, 30, 40, 50, 60)
    (row,) = api.get("/v1/pipelines").json()["items"]
    assert (row["behind"], row["waiting"], row["stopped"], row["age"] > 0) == (1, 5, ["web"], True)
    assert row["slowest"] == {"id": "web", "age": row["age"], "deadline": None}
    assert sum(row["recent"]) == 15
    assert len(row["recent"]) == 24


def test_the_span_of_a_curve_is_checked(api: Any, delivered: None) -> None:
    for seconds in ("0", "1209601", "x"):
        assert api.get("/v1/pipelines/p/series", params={"seconds": seconds}).status_code == 422


def test_the_list_begins_with_what_needs_somebody(api: Any, home: Path, airflow: Airflow) -> None:
    for n in range(7):
        text = PIPELINE.replace("URL", "http://localhost:1/").replace("id: p\n", f"id: p{n}\n")
        write_pipeline(home, f"p{n}", text)
        broker_of(f"p{n}").lifecycle.register(["in"], ["file", "web"])
    events(home / "data", 5)
    broker_of("p4").lifecycle.fail("destinations.web", "it is full", "Unavailable")
    broker_of("p3").lifecycle.halt_destination("web")
    broker_of("p1").lifecycle.force_stop()
    from conduit_tasks.topology import Recovery

    broker_of("p5").failures.note("sources.in", "1", "no such host", "OSError", Recovery())
    run_once("p6", "down")  # nobody listens at port 1
    found = api.get("/v1/pipelines", params={"sort": "attention"}).json()["items"]
    assert [row["id"] for row in found] == ["p4", "p3", "p6", "p5", "p1", "p0", "p2"]
    assert found.pop(2)["down"] == ["web"]
    assert [row["status"] for row in found[:4]] == ["degraded", "running", "recovering", "stopped"]
    assert found[2]["error"]["error"] == "no such host"
    assert abs(found[0]["since"] - time.time()) < 3_600
    some = api.get("/v1/pipelines", params={"sort": "attention", "attention": True, "limit": 2, "offset": 2}).json()
    assert (some["total"], [row["id"] for row in some["items"]]) == (5, ["p6", "p5"])


def test_a_status_at_a_glance_is_the_status_of_the_pipeline(
    api: Any, home: Path, airflow: Airflow, delivered: None
) -> None:
    (row,) = api.get("/v1/pipelines").json()["items"]
    whole = api.get("/v1/pipelines/p").json()
    for name in ("status", "error", "sealed"):
        assert row[name] == whole[name]
    assert row["dead"] == sum(d["dead"] for d in whole["destinations"]) == 1
    assert row["since"] == max(d["confirmed_at"] for d in whole["destinations"])


def test_a_lag_that_an_alert_watches_makes_a_destination_late(
    api: Any, delivered: None, home: Path, airflow: Airflow
) -> None:
    from tests.faults.parts import events
    from tests.micro_batch import harness

    # Given a destination that lags, in a pipeline whose destinations have no deadline
    broker_of("p").lifecycle.halt_destination("web")
    events(home / "data", 15)
    harness.run_once("p", "third")
    (row,) = api.get("/v1/pipelines").json()["items"]
    assert (row["late"], row["deadline"]) == ([], None)
    # When an alert has a rule about lag
    text = next(iter((home / "include" / "pipelines").glob("p.yaml"))).read_text()
    rules = "    alerts:\n" + "".join(
        f"      - {{notifier: tests.airflow.late_notifier.ToFile, arguments: {{path: x}}, lag: {lag}}}\n"
        for lag in ("1h", "0s")
    )
    write_pipeline(home, "p", text.replace("    connectors:\n", f"{rules}    connectors:\n", 1))
    # Then it is late by the shortest
    (row,) = api.get("/v1/pipelines", params={"sort": "attention"}).json()["items"]
    assert (row["late"], row["deadline"], row["attention"]) == (["web"], 0.0, 4)
    assert row["slowest"] == {"id": "web", "age": row["age"], "deadline": 0.0}
