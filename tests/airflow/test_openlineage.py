"""Events of OpenLineage, as its provider's listener emits them when a node's task has ended."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import openlineage.client.generated as specified
import pytest
from airflow.providers.openlineage import conf as openlineage
from airflow.providers.openlineage.plugins import listener
from airflow.sdk.api.datamodels._generated import DagRun, DagRunState, DagRunType, TIRunContext
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from conduit_tasks.airflow import lineage
from conduit_tasks.airflow.compat import AirflowSkipException
from conduit_tasks.airflow.factory import load_dags
from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.micro_batch.collection import collect
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.pipeline.assets import read
from conduit_tasks.pipeline.datasets import Dataset, dataset
from conduit_tasks.spool.spool import Spool
from tests.micro_batch.harness import run_once, write_pipeline

SECRET = "geheim"
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "in/*.jsonl", format: jsonl, settle: 0s}}
      - {id: idle, type: source, plugin: file, settings: {path: "idle/*.jsonl"}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl}}
      - id: late
        type: destination
        plugin: file
        settings: {path: late.jsonl}
        asset: s3://lake/late
        processors: [{id: raw, plugin: json.encode, settings: {field: .Payload.After}}]
"""


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("file:///home/a%20b.jsonl", "file", "/home/a b.jsonl"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3://bucket/", "s3://bucket", "/"),
        ("gs://bucket/a", "gs://bucket", "a"),
        ("postgres://db:5432/x/public/t", "postgres://db:5432", "x.public.t"),
        ("mysql://db:3306/x/t", "mysql://db:3306", "x.t"),
        ("sqlite:///home/x.db/t", "file", "/home/x.db/t"),
        ("kafka://a:9092/orders", "kafka://a:9092", "orders"),
        ("redis://r:6379/2/s", "redis://r:6379", "2/s"),
        ("iceberg://default/sales/orders", "iceberg://default", "sales.orders"),
        ("https://api:8443/x/y", "https://api:8443", "/x/y"),
        ("sqs://sqs.eu.amazonaws.com/1/q", "sqs://sqs.eu.amazonaws.com", "1/q"),
        (f"s3://u:{SECRET}@bucket/a", "s3://bucket", "a"),
    ],
)
def test_a_dataset_has_the_name_that_openlineage_gives_it(uri: str, namespace: str, name: str) -> None:
    assert dataset(uri) == Dataset(namespace, name)


def test_an_asset_that_is_only_a_name_is_no_dataset() -> None:
    assert dataset("orders") is None
    assert dataset("sqs://") is None


@pytest.mark.parametrize(
    ("plugin", "settings", "uris"),
    [
        ("kafka", {"servers": "a:9092", "topics": "x, ^y.*, z"}, ["kafka://a:9092/x", "kafka://a:9092/z"]),
        ("postgres", {"url": f"postgresql://u:{SECRET}@db/d", "tables": "t, s.u"},
         ["postgres://db:5432/d/public/t", "postgres://db:5432/d/s/u"]),
        ("postgres", {"url": "postgresql://db/d", "tables": "*"}, []),
        ("postgres", {"url": "postgresql://db/d", "table": "t"}, ["postgres://db:5432/d/public/t"]),
        ("redis", {"url": f"redis://:{SECRET}@r", "streams": "s"}, ["redis://r:6379/0/s"]),
        ("file", {"path": "/in/*.jsonl"}, ["file:///in/*.jsonl"]),
        ("generator", {}, []),
    ],
)  # fmt: skip
def test_a_source_reads_what_its_settings_name(plugin: str, settings: dict[str, str], uris: list[str]) -> None:
    assert list(read(plugin, settings)) == uris


@pytest.fixture
def events(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """OpenLineage's provider, which writes its events into a file; returns what it has written."""
    path = tmp_path / "events"
    transport = {"type": "file", "log_file_path": str(path), "append": True}
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__NAMESPACE", "here")
    # In a child it would be the same, but nobody would see what is wrong with it.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTE_IN_THREAD", "True")
    forget()
    write_pipeline(home, "p", PIPELINE)
    yield lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    monkeypatch.undo()
    forget()


def forget() -> None:
    """Has the provider read its settings again."""
    for each in [*vars(openlineage).values(), listener._get_process_adapter]:
        if callable(clear := getattr(each, "cache_clear", None)):
            clear()


def task_of(node: str, run: str = "r1") -> Any:
    """A task as Airflow's task runner has it, with the context of a run."""
    [dag] = load_dags("p")
    task, now = dag.get_task(node), datetime.now(UTC)
    dag_run = DagRun(
        dag_id="p",
        run_id=run,
        logical_date=now,
        data_interval_start=now,
        data_interval_end=now,
        run_after=now,
        start_date=now,
        end_date=None,
        run_type=DagRunType.MANUAL,
        state=DagRunState.RUNNING,
        consumed_asset_events=[],
        partition_key=None,
    )
    own = {"id": uuid4(), "dag_version_id": uuid4(), "task_id": node, "dag_id": "p", "run_id": run, "try_number": 1}
    return RuntimeTaskInstance.model_construct(
        **own,
        map_index=-1,
        max_tries=2,
        start_date=now,
        state="running",
        hostname="here",
        task=task,
        bundle_instance=SimpleNamespace(name="b", version=None),
        _ti_context_from_server=TIRunContext(dag_run=dag_run, max_tries=2),
    )


def ended(node: str, context: dict[str, Any], run: str = "r1") -> None:
    """Executes a task after its work is done, and has the provider hear that it has succeeded."""
    ti = task_of(node, run)
    context["ti"].dag_id = "p"
    ti.task.execute({**context, "run_id": run, "outlet_events": OutletEventAccessors()})
    listener.OpenLineageListener().on_task_instance_success(previous_state=None, task_instance=ti)


def only_complete(found: list[dict[str, Any]]) -> dict[str, Any]:
    [event] = [event for event in found if event["eventType"] == "COMPLETE"]
    check(event)
    return event


MODELS = {
    name: cls
    for module in pkgutil.iter_modules(specified.__path__)
    for name, cls in inspect.getmembers(importlib.import_module(f"{specified.__name__}.{module.name}"), inspect.isclass)
    if hasattr(cls, "__attrs_attrs__")
}
"""Classes that OpenLineage makes from its specification, by their names there."""


def check(event: dict[str, Any]) -> None:
    """Checks an event against the specification: its own fields, and each facet that is the specification's."""
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert urlsplit(event["producer"]).scheme == "https"
    assert event["schemaURL"].endswith("#/$defs/RunEvent")
    UUID(event["run"]["runId"])
    assert event["job"]["namespace"]
    assert event["job"]["name"]
    datasets = [*event["inputs"], *event["outputs"]]
    for each in datasets:
        assert each["namespace"]
        assert each["name"]
    assert {name for each in event["inputs"] for name in each} <= {"namespace", "name", "facets", "inputFacets"}
    assert {name for each in event["outputs"] for name in each} <= {"namespace", "name", "facets", "outputFacets"}
    of_datasets = [each.get(kind, {}) for each in datasets for kind in ("facets", "inputFacets", "outputFacets")]
    for facets in (event["run"]["facets"], event["job"]["facets"], *of_datasets):
        for facet in facets.values():
            assert urlsplit(facet["_producer"]).scheme == "https"
            url = urlsplit(facet["_schemaURL"])
            assert url.scheme == "https"
            name = url.fragment.rpartition("/")[2]
            if url.netloc == "openlineage.io" and name not in ("RunFacet", "JobFacet"):
                made = {name: value for name, value in facet.items() if name not in ("_producer", "_schemaURL")}
                MODELS[name](**made)


def write(home: Path, *numbers: int) -> None:
    (home / "in").mkdir(exist_ok=True)
    (home / "in" / f"{numbers[0]}.jsonl").write_text("".join(f'{{"n": {n}, "of": null}}\n' for n in numbers))


def test_a_delivery_is_an_event_with_datasets_records_and_fields(
    home: Path, events: Any, context: dict[str, Any], spark_connection: str
) -> None:
    # Given a run that delivered three records of one source
    write(home, 1, 2, 3)
    run_once("p", "r1")
    # When its task ends
    ended("destinations.out", context)
    # Then the event has the job as Airflow names it
    event = only_complete(events())
    assert (event["job"]["namespace"], event["job"]["name"]) == ("here", "p.destinations.out")
    # And what was read, of the source that had something, with its records and their fields
    [came] = event["inputs"]
    assert (came["namespace"], came["name"]) == ("file", f"{home}/in/*.jsonl")
    assert came["inputFacets"]["inputStatistics"]["rowCount"] == 3
    assert [field["name"] for field in came["facets"]["schema"]["fields"]] == ["n", "of"]
    # And what was written
    [went] = event["outputs"]
    assert (went["namespace"], went["name"]) == ("file", f"{home}/out.jsonl")
    assert went["outputFacets"]["outputStatistics"]["rowCount"] == 3
    assert went["facets"]["schema"]["fields"][0] == {"name": "n", "type": "integer", "fields": []}


def test_each_run_has_its_own_counts_and_a_processor_hides_the_fields(
    home: Path, events: Any, context: dict[str, Any], spark_connection: str
) -> None:
    # Given two runs, and a destination that gets the records in another form
    write(home, 1, 2, 3)
    run_once("p", "r1")
    write(home, 4, 5)
    run_once("p", "r2")
    # When its task ends
    ended("destinations.late", context, "r2")
    # Then the event counts what it got in this run, and has the dataset that the file names
    event = only_complete(events())
    [came], [went] = event["inputs"], event["outputs"]
    assert came["inputFacets"]["inputStatistics"]["rowCount"] == 2
    assert (went["namespace"], went["name"]) == ("s3://lake", "late")
    assert went["outputFacets"]["outputStatistics"]["rowCount"] == 2
    # And says nothing of fields that nobody knows
    assert "schema" not in went.get("facets", {})


def test_records_are_counted_by_redis_and_few_manifests_are_read(
    home: Path, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a run of five micro-batches of two sources, and a spool of which each manifest takes a while
    (home / "idle").mkdir()
    for n in range(5):
        write(home, n, n)
        (home / "idle" / f"{n}.jsonl").write_text('{"x": 1}\n' * n)
        run_once("p", "r1")
    read, whole = [], Spool.read_sealed
    monkeypatch.setattr(Spool, "read_sealed", lambda self, path: [read.append(path), whole(self, path)][1])
    # When the task ends
    found = lineage.of_node("p", "destinations.out", "r1")
    # Then each source has its number, for which no manifest was read
    assert found is not None
    assert [end.rows for end in found.inputs] == [10, 10]
    assert len(set(read)) == 1
    # And the same, where Redis keeps a fraction of each micro-batch, as it does in a run that lasts
    monkeypatch.setattr("conduit_tasks.micro_batch.collection.SLIM_AFTER", 0.0)
    with opened("p", "r2") as context:
        collect(context)
        assert "stage:sources.in" not in context.broker.access.hash(context.broker.keys.micro_batch(5))
    found = lineage.of_node("p", "destinations.out", "r1")
    assert found is not None
    assert [end.rows for end in found.inputs] == [10, 10]


def test_a_dataset_has_a_bounded_number_of_fields(home: Path, events: Any) -> None:
    (home / "in").mkdir()
    names = ["n" * 300, *(f"n{n}" for n in range(2_000))]
    (home / "in" / "a.jsonl").write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    run_once("p", "r1")
    found = lineage.of_node("p", "destinations.out", "r1")
    assert found is not None
    assert [name for name, _ in found.outputs[0].fields] == [f"n{n}" for n in range(lineage.FIELDS)]


def test_the_fields_of_a_registered_schema_are_those_of_the_schema(home: Path) -> None:
    from contextlib import closing

    from conduit_tasks.record.record import Record
    from conduit_tasks.schemas.registry import RedisRegistry

    fields = [
        {"name": "id", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    schema = {"type": "record", "name": "order", "fields": fields}
    with closing(RedisRegistry()) as registry:
        _, version = registry.register_version("orders", json.dumps(schema))
    meta = {"opencdc.payload.schema.subject": "orders", "opencdc.payload.schema.version": str(version)}
    found = lineage._registered([Record(b"1", metadata=meta)])
    assert found == (("id", "long"), ("at", "null|timestamp-micros"), ("tags", "array"))
    # And a version that nobody knows is none
    meta["opencdc.payload.schema.version"] = "99"
    assert lineage._registered([Record(b"1", metadata=meta)]) == ()


def test_a_connection_names_the_dataset_and_its_password_is_nowhere(
    home: Path, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "postgres", "host": "db", "login": "u", "password": SECRET, "schema": "sales"}
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps(connection))
    text = PIPELINE.replace(
        "plugin: file, settings: {path: out.jsonl}", "plugin: sql, settings: {connection: warehouse, table: t}"
    )
    write_pipeline(home, "p", text)
    write(home, 1)
    found = lineage.of_node("p", "destinations.out", "r1")
    assert found is not None
    [end] = found.outputs
    assert end.datasets == (Dataset("postgres://db:5432", "sales.public.t"),)
    assert SECRET not in repr(found)


def test_the_path_of_an_address_that_a_connection_holds_is_told_to_nobody(
    home: Path, events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = {"conn_type": "http", "host": f"https://chat/services/{SECRET}"}
    monkeypatch.setenv("AIRFLOW_CONN_CHAT", json.dumps(connection))
    at = "plugin: file, settings: {path: out.jsonl}"
    for settings, name in (("connection: chat", "/"), ("url: 'https://chat/own'", "/own")):
        write_pipeline(home, "p", PIPELINE.replace(at, f"plugin: http, settings: {{{settings}}}"))
        forget()
        found = lineage.of_node("p", "destinations.out", "r1")
        assert found is not None
        assert found.outputs[0].datasets == (Dataset("https://chat", name),)


@pytest.mark.parametrize("transport", ["http", '["a"]'])
def test_settings_of_the_provider_that_cannot_be_read_fail_no_task(
    monkeypatch: pytest.MonkeyPatch, caplog: Any, transport: str
) -> None:
    from airflow.providers.openlineage import conf

    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", transport)
    monkeypatch.delenv("AIRFLOW__OPENLINEAGE__DISABLED", raising=False)
    for name in ("is_disabled", "transport", "config_path"):
        getattr(getattr(conf, name), "cache_clear", lambda: None)()
    assert lineage.is_wanted() is False
    assert "its settings cannot be read" in caplog.text


def test_a_task_ends_as_it_would_if_nothing_can_be_said(
    home: Path,
    events: Any,
    context: dict[str, Any],
    spark_connection: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: Any,
) -> None:
    # Given a spool that cannot be read
    write(home, 1)
    run_once("p", "r1")

    def broken(*_: Any) -> Any:
        raise OSError(f"s3://u:{SECRET}@x is gone")

    monkeypatch.setattr("conduit_tasks.operate.stages.stage_of", broken)
    # When the task ends, Then it succeeds, and there is an event
    ended("destinations.out", context)
    only_complete(events())
    # And the log names no address
    assert "OpenLineage hears nothing of destinations.out: OSError" in caplog.text
    assert SECRET not in caplog.text


def skipped(node: str, context: dict[str, Any], run: str) -> None:
    """Executes a task that is skipped, and has the provider hear of it."""
    ti = task_of(node, run)
    context["ti"].dag_id = "p"
    with pytest.raises(AirflowSkipException):
        ti.task.execute({**context, "run_id": run, "outlet_events": OutletEventAccessors()})
    listener.OpenLineageListener().on_task_instance_skipped(previous_state=None, task_instance=ti)


@pytest.mark.parametrize("node", ["sources.in", "destinations.out"])
def test_a_task_that_is_skipped_names_no_dataset(
    home: Path, events: Any, context: dict[str, Any], spark_connection: str, node: str
) -> None:
    write(home, 1)
    run_once("p", "r1")
    skipped(node, context, "r2")
    event = only_complete(events())
    assert (event["inputs"], event["outputs"]) == ([], [])


def test_a_task_that_is_skipped_after_it_has_delivered_something_names_its_datasets(
    home: Path, events: Any, context: dict[str, Any], spark_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, 1, 2)
    run_once("p", "r1")

    def waits(*_: Any) -> None:
        raise AirflowSkipException("destinations.out is unavailable")

    monkeypatch.setattr(ConduitSubmitOperator, "_execute", waits)
    skipped("destinations.out", context, "r1")
    [output] = only_complete(events())["outputs"]
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2


def test_nothing_is_asked_if_openlineage_is_off(
    home: Path, context: dict[str, Any], spark_connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(home, "p", PIPELINE)
    forget()
    monkeypatch.setattr(lineage, "of_node", lambda *_: pytest.fail("asked"))
    task = task_of("destinations.out").task
    with pytest.raises(AirflowSkipException):
        task.execute({**context, "run_id": "r1"})
    assert task.get_openlineage_facets_on_complete(None) is None
