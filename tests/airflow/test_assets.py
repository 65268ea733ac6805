"""Assets of a pipeline's ends: their URIs, what is kept out of them, and when there is none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from conduit_tasks.airflow.asset_events import of_run, tell_assets
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.pipeline.assets import outlets
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.topology import Destination
from tests.micro_batch.harness import run_once, write_pipeline

SECRET = "geheim"


@pytest.mark.parametrize(
    ("plugin", "settings", "uri"),
    [
        ("file", {"path": "out/a b.jsonl"}, "file://{home}/out/a%20b.jsonl"),
        ("file", {"path": "out/{{ .Key }}.jsonl"}, None),
        ("delta", {"path": "s3://lake/orders"}, "s3://lake/orders"),
        ("iceberg", {"table": "sales.orders", "catalog.uri": "http://h"}, "iceberg://default/sales/orders"),
        ("iceberg", {"table": "a.b.t", "catalog.name": "my lake"}, "iceberg://my%20lake/a/b/t"),
        ("iceberg", {"table": "t", "catalog.uri": "http://h"}, None),
        ("s3", {"bucket": "b", "prefix": "events/"}, "s3://b/events/"),
        ("s3", {"aws.bucket": "b"}, "s3://b/"),
        ("postgres", {"url": f"postgresql://u:{SECRET}@db/x?sslmode=require", "table": "t"}, "postgres://db:5432/x/public/t"),
        ("sql", {"url": f"postgresql+psycopg2://u:{SECRET}@db:1/x", "table": "s.t"}, "postgres://db:1/x/s/t"),
        ("sql", {"url": "sqlite:///out/x.db", "table": "t"}, "sqlite://{home}/out/x.db/t"),
        ("sql", {"connection": "warehouse", "table": "t"}, None),
        ("kafka", {"servers": "a:9092,b:9092", "topic": "orders"}, "kafka://a:9092/orders"),
        ("kafka", {"servers": "a:9092"}, None),
        ("redis", {"url": f"redis://:{SECRET}@r/2", "stream": "s"}, "redis://r:6379/2/s"),
        ("http", {"url": f"https://api/x?key={SECRET}"}, "https://api/x"),
        ("http", {"connection": "api", "url": "/x"}, None),
        ("sqs", {"queue": "https://sqs.eu.amazonaws.com/1/q"}, "sqs://sqs.eu.amazonaws.com/1/q"),
        ("sqs", {"queue": "q"}, "sqs://q"),
        ("log", {}, None),
        ("sql", {"url": "postgresql://[", "table": "t"}, None),
    ],
)  # fmt: skip
def test_a_destination_s_asset_is_made_from_its_settings(
    home: Path, plugin: str, settings: dict[str, str], uri: str | None
) -> None:
    # Given a destination with these settings, Then its asset names what it writes, and no secret
    expected = () if uri is None else (uri.format(home=home),)
    assert outlets(Destination("d", plugin, settings)) == expected
    # And Airflow takes it as it is
    assert tuple(Asset(each).name for each in expected) == expected


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.txt}, asset: %s}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
      - {id: named, type: destination, plugin: file, settings: {path: named.jsonl}, asset: [orders, "s3://b/x"]}
      - {id: none, type: destination, plugin: file, settings: {path: none.jsonl}, asset: []}
"""


def test_the_dag_s_tasks_have_them(home: Path) -> None:
    # Given a pipeline whose file names some
    (home / "include" / "pipelines" / "p.yaml").write_text(PIPELINE % "upstream")
    # When its DAG is built
    [dag] = load_dags("p")
    # Then
    ends: dict[str, Any] = {task.task_id: task for task in dag.tasks}
    assert [a.name for a in ends["sources.in"].inlets] == ["upstream"]
    assert [a.uri for a in ends["destinations.out"].outlets] == [f"file://{home}/out.jsonl"]
    assert [a.name for a in ends["destinations.named"].outlets] == ["orders", "s3://b/x"]
    assert ends["destinations.none"].outlets == []


@pytest.mark.parametrize(
    ("asset", "says"),
    [
        (f"'s3://u:{SECRET}@b/x'", "leave out the login"),
        ("'airflow://x'", "keeps the scheme airflow"),
        ("' '", "printable"),
        ("é", "printable ASCII"),
    ],
)
def test_a_wrong_asset_is_named_at_its_place(home: Path, asset: str, says: str) -> None:
    file = home / "p.yaml"
    file.write_text(PIPELINE % asset)
    [found] = load_file(file).errors
    assert (found.line, found.code) == (6, "E217")
    assert says in found.message
    assert SECRET not in str(found)


def test_an_asset_changes_no_version_of_the_file(home: Path) -> None:
    def digest(asset: str) -> str:
        (home / "p.yaml").write_text(PIPELINE % asset)
        return load_file(home / "p.yaml").pipelines[0].digest()

    assert digest("a") == digest("b")


class Told(dict[Any, Any]):
    """Airflow's accessors of outlet events."""

    def __missing__(self, key: Any) -> Any:
        return self.setdefault(key, type("Event", (), {"extra": None})())


def test_a_run_that_delivered_is_an_event_with_its_counts(home: Path) -> None:
    # Given a run that delivered three records
    write_pipeline(home, "p", PIPELINE % "a")
    (home / "in.txt").write_text("1\n2\n3\n")
    before = datetime.now(UTC)
    run_once("p", "r1")
    # Then its event says so
    event = Told()
    context = {"outlet_events": event, "dag_run": SimpleNamespace(start_date=before)}
    assert tell_assets("p", "out", "r1", context, ["a"]) == ["a"]
    extra = event["a"].extra
    assert (extra["run"], extra["counts"]["delivered"]) == ("r1", 3)
    assert extra["micro_batches"] == {"first": 1, "last": 1, "number": 1, "some": [1]}
    began, ended = (datetime.fromisoformat(extra["interval"][end]) for end in ("from", "to"))
    assert before == began < ended <= datetime.now(UTC)
    # And one that found nothing is none
    run_once("p", "r2")
    assert of_run("p", "out", "r2") is None
    assert tell_assets("p", "out", "r2", {"outlet_events": Told()}, ["a"]) == []
