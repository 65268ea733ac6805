"""The source `gateway` in a whole pipeline, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.registry import ack_on
from conduit_tasks.connectors.sources import source_connector
from conduit_tasks.errors import ConfigError
from conduit_tasks.gateway.connector import GatewaySource
from conduit_tasks.pipeline.load import get_pipeline, load_folder
from tests.gateway.conftest import GatewayProcess, event, write_pipeline
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, state
from tests.micro_batch.harness import write_pipeline as write_text

Serving = Callable[..., GatewayProcess]
Stored = Callable[..., list[bytes]]

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 7}
    connectors:
      - {id: web, type: source, plugin: gateway, settings: {auth: none, cloudevents.region: eu}}
      - id: all
        type: destination
        plugin: file
        settings: {path: out/all.jsonl, format: opencdc}
      - id: paid
        type: destination
        plugin: file
        settings: {path: out/paid.jsonl}
        trigger: {filters: [{exact: {type: order.paid}}, {exact: {region: eu}}]}
"""


@pytest.mark.proves("T2", "T3", "C9")
def test_events_go_through_a_pipeline_in_order_and_are_removed_when_they_are_in_the_spool(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    # Given events of two types and of two regions, taken in
    write_text(gateway_home, "p", PIPELINE)
    gateway = serving()
    for n in range(20):
        kind = "order.paid" if n % 3 == 0 else "order.placed"
        more: dict[str, Any] = {"region": "us"} if n == 3 else {}
        sent = event(n, type=kind, partitionkey=f"k{n % 2}", time=f"2026-11-21T07:00:{n:02d}Z", **more)
        assert gateway.post(sent, type="application/cloudevents+json").status == 202
    gateway.stop()
    assert len(stored()) == 20
    # When the pipeline runs until nothing is left
    runs = run_until_quiet("p")
    assert len(runs) == 4
    # Then each destination has what it wants, in order, under the producers' own attributes
    records = payloads(gateway_home / "out" / "all.jsonl")
    assert [r["payload"]["after"]["n"] for r in records] == list(range(20))
    first = records[0]
    assert first["metadata"]["cloudevents.id"] == "e0"
    assert first["metadata"]["cloudevents.source"] == "/test"
    assert first["metadata"]["opencdc.createdAt"] == "1795244400000000000"
    assert first["key"] == "k0"
    paid = payloads(gateway_home / "out" / "paid.jsonl")
    assert [r["payload"]["after"]["n"] for r in paid] == [0, 6, 9, 12, 15, 18]
    # And Redis holds none of them any more
    assert stored() == []
    assert state("p").positions.acked("web") == state("p").positions.planned("web")


def test_an_event_is_news_until_it_is_planned(gateway_home: Path, serving: Serving) -> None:
    write_text(gateway_home, "p", PIPELINE)
    gateway = serving()
    source = source_connector(get_pipeline("p"), "web")
    assert source.news({}) is False
    for n in range(9):
        gateway.post(event(n), type="application/cloudevents+json")
    gateway.stop()
    assert source.news({}) is True
    run_once("p", "first")
    with closing(state("p")) as broker:
        assert source.news(broker.positions.planned("web")) is True, "there are more than one micro-batch holds"
        run_until_quiet("p")
        assert source.news(broker.positions.planned("web")) is False
    source.close()


@pytest.mark.proves("T2", "C16")
def test_events_stay_until_the_micro_batch_is_sealed(gateway_home: Path, serving: Serving, stored: Stored) -> None:
    write_text(gateway_home, "p", PIPELINE)
    gateway = serving()
    for n in range(3):
        assert gateway.post({"n": n}).status == 202
    # Given a run that planned them and read nothing
    connector = source_connector(get_pipeline("p"), "web")
    assert [s.records for s in connector.plan({}, Limit())] == [3]

    def broken(function: Any, pieces: Any) -> list[Any]:
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"):
        run_once("p", run_all=broken)
    assert len(stored()) == 3
    # When one reads them again, then they are there, and gone from Redis once sealed
    run_until_quiet("p")
    assert [r["payload"]["after"]["n"] for r in payloads(gateway_home / "out" / "all.jsonl")] == [0, 1, 2]
    assert stored() == []


@pytest.mark.proves("T2", "T4")
def test_with_ack_on_delivered_events_stay_until_every_destination_has_them(
    gateway_home: Path, serving: Serving, stored: Stored
) -> None:
    text = PIPELINE.replace("plugin: gateway,", "plugin: gateway, ack-on: delivered,")
    write_text(gateway_home, "p", text)
    gateway = serving()
    assert gateway.post({"n": 1}).status == 202
    # Given a destination that cannot be written
    (gateway_home / "out" / "all.jsonl").mkdir(parents=True)
    run_once("p")
    assert len(stored()) == 1
    (gateway_home / "out" / "all.jsonl").rmdir()
    run_until_quiet("p")
    assert stored() == []


def test_the_default_is_to_ack_when_stored_and_to_keep_in_redis(gateway_home: Path) -> None:
    write_pipeline(gateway_home)
    [pipeline] = load_folder(gateway_home / "include" / "pipelines", plugins=True).pipelines
    assert (ack_on(pipeline.sources[0]), pipeline.sources[0].durability) == ("stored", "redis")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "option 'auth' is missing"),
        (
            {"auth": "secret-token"},
            "option 'auth' takes env:NAME, connection:ID, variable:KEY or none, never the token",
        ),
        ({"auth": "env:"}, "option 'auth'"),
        ({"auth": "none", "max-request-size": "lots"}, "option 'max-request-size'"),
        ({"auth": "none", "backlog.bytes": "1KiB"}, "option 'backlog.bytes': it must be at least 1048576 bytes"),
        ({"auth": "none", "backlog.records": "0"}, "option 'backlog.records'"),
        ({"auth": "none", "rate-limit": "0"}, "option 'rate-limit'"),
        ({"auth": "none", "webhooks": "maybe"}, "option 'webhooks'"),
        ({"auth": "none", "backlog.record": "1"}, "did you mean 'backlog.records'"),
        ({"auth": "none", "cloudevents.type": "{{ .x }}"}, "'cloudevents.type' is a template"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GatewaySource(settings)
    assert said in str(caught.value)
    assert "secret-token" not in str(caught.value)


def test_findings_are_at_their_place(gateway_home: Path) -> None:
    write_pipeline(gateway_home, max_request_size="lots")
    found = load_folder(gateway_home / "include" / "pipelines", plugins=True).errors
    assert [(f.code, "max-request-size" in f.message) for f in found] == [("E205", True)]
