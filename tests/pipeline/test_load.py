"""From files to topology: defaults, Conduit's own files, what breaks what."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.registry import ack_on
from conduit_tasks.pipeline.guarantees import source_edge
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.pipeline.version import version_of
from conduit_tasks.topology import DeadLetterQueue, Delivery, Limits, Pipeline, Source, Wake
from tests.pipeline.conftest import FILES, Files

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.proves("F1")
def test_conduits_own_file_is_read_unmodified() -> None:
    result = load_file(FILES / "conduit.yaml", env={"ARCHIVE_FOLDER": "/srv", "STAGE": "test"})

    assert result.errors == []
    orders, heartbeat = result.pipelines
    assert [c.id for c in orders.destinations] == ["audit:archive"]
    assert orders.destinations[0].plugin == "file"
    assert orders.destinations[0].settings["path"] == "/srv/orders-test.log"
    assert orders.destinations[0].settings["sdk.batch.size"] == "1000"
    assert orders.dead_letters.plugin == "log"
    assert orders.destinations[0].dead_letters is orders.dead_letters
    assert orders.processors[0].settings == {"field": ".Metadata.seen", "value": "yes"}
    assert heartbeat.status == "stopped"
    assert heartbeat.sources[0].settings == {"rate": "1.50", "burst.sleepTime": "10s"}
    assert heartbeat.processors[0].plugin == "filter"


@pytest.mark.proves("F1")
def test_deprecated_names_are_read_with_a_warning_at_their_place() -> None:
    result = load_file(FILES / "conduit.yaml", env={"ARCHIVE_FOLDER": "/srv", "STAGE": "test"})
    deprecated = [f for f in result.findings if f.code == "W101"]
    text = (FILES / "conduit.yaml").read_text().splitlines()
    assert [text[f.line - 1][f.column - 1 :] for f in deprecated] == ["type: filter"]
    assert deprecated[0].pipeline == "heartbeat"


@pytest.mark.proves("C6")
def test_defaults_are_those_of_an_unmodified_conduit_file(files: Files) -> None:
    pipeline = files.load(files.with_pipeline()).pipelines[0]

    assert pipeline.schedule == "30s"
    assert pipeline.micro_batch == Limits(records=500_000)
    assert pipeline.lag_budget is None
    assert pipeline.isolate is False
    assert pipeline.spool_retention == 86_400
    delivery = pipeline.destinations[0].delivery
    assert delivery == Delivery(pipe="stream", max_unconfirmed=1, order_by="partition", retry=0)
    assert pipeline.destinations[0].dead_letters == DeadLetterQueue(None, {}, 1, 0)
    assert ack_on(pipeline.sources[0]) == "delivered"
    assert pipeline.status == "running"
    assert pipeline.name == "p"


def test_every_key_of_ours_reaches_the_topology() -> None:
    result = load_file(FILES / "design.yaml", env={})
    assert result.findings == []
    flights = result.pipelines[0]
    assert flights.micro_batch == Limits(500_000, 256 * 1024**2)
    assert flights.lag_budget == Limits(records=5_000_000, age=21_600)
    assert (flights.data_intervals, flights.wake) == (True, Wake(("departures",), 5, 60))
    assert (flights.drain_limit, flights.replay_interval) == (90, "@hourly")
    assert (flights.spool_path, flights.spool_retention) == ("spool", 172_800)
    assert flights.handlers == ({"on": "nacked", "call": "include.handlers:notify"},)
    assert flights.destination("delays").filters == ({"exact": {"type": "flight.departed"}},)
    assert flights.destination("delays").delivery == Delivery(
        pipe="resend-multi",
        max_unconfirmed=64,
        order_by="key",
        retry=5,
        backoff_policy="exponential",
        backoff_delay=0.2,
        timeout=10,
        bulk_timeout=30,
        retry_after_max=120,
        on_unavailable="dead-letter",
        refused="complete",
        rate_limit=100,
        guarantee="at-least-once",
        max_redeliveries=4,
        park_keys=True,
    )


@pytest.mark.proves("C6")
def test_a_destination_without_a_queue_of_its_own_uses_the_pipelines() -> None:
    flights = load_file(FILES / "design.yaml", env={}).pipelines[0]
    assert flights.destination("delays").dead_letters == DeadLetterQueue(None, {}, 100, 5)
    assert flights.destination("archive").dead_letters == DeadLetterQueue("file", {"path": "out/dead.jsonl"}, 0, 0)


@pytest.mark.proves("T2")
def test_a_source_is_acked_as_its_class_says_unless_the_file_says_otherwise(files: Files) -> None:
    text = files.with_pipeline().replace("plugin: file", "plugin: gateway", 1)
    assert ack_on(files.load(text).pipelines[0].sources[0]) == "stored"
    text = files.with_pipeline(source="ack-on: delivered").replace("plugin: file", "plugin: gateway", 1)
    assert ack_on(files.load(text).pipelines[0].sources[0]) == "delivered"


@pytest.mark.proves("T2")
def test_every_source_hears_of_what_is_delivered_but_where_a_producer_waits_or_a_log_grows() -> None:
    stored = {name for name, found in registry.known().items() if found.source and found.source.ack_on == "stored"}
    assert stored == {"gateway", "postgres"}
    for name, found in registry.known().items():
        if found.source is not None and name in registry.BUILTIN:
            when = found.source.ack_on
            source = Source("in", name)
            # The file as it is read, `conduit explain`, the version that `conduit plan` compares, and the page agree.
            assert ack_on(source) == when
            said = source_edge(source, found.source).acked
            assert said == source_edge(Source("in", name, ack_on=when)).acked != source_edge(source).acked
            version = version_of(Pipeline("p", (source,), ()))
            assert version["sources"][0]["ack_on"] == when
            assert f"`ack-on: {when}` by default" in (DOCS / "connectors" / f"{name}.md").read_text()


def test_settings_are_flattened_to_dotted_text(files: Files) -> None:
    text = files.with_pipeline().replace(
        "{path: in.txt}", "{path: in.txt, aws: {region: eu, retries: 3}, on: true, list: [a, 1], cols: [{n: x}], e: }"
    )
    assert files.load(text).pipelines[0].sources[0].settings == {
        "path": "in.txt",
        "aws.region": "eu",
        "aws.retries": "3",
        "on": "true",
        "list": "a,1",
        "cols.0.n": "x",
        "e": "",
    }


@pytest.mark.proves("F1")
def test_conduits_template_from_postgres_to_s3_is_valid() -> None:
    result = load_file(FILES / "postgres-s3.yaml", env={}, plugins=True)
    assert result.findings == []
    [destination] = result.pipelines[0].destinations
    built = registry.destination_class("s3")(destination.settings)
    assert {name: built.settings[name] for name in ("bucket", "region", "access-key-id", "format")} == {
        "bucket": "your-bucket-name",
        "region": "us-east-1",
        "access-key-id": "your-access-key-id",
        "format": "opencdc",
    }
    source = {"aws.bucket": "b", "aws.region": "eu", "prefix": "in/", "pollingPeriod": "10s"}
    assert registry.source_class("s3")(source).settings["bucket"] == "b"


@pytest.mark.proves("F1")
def test_a_setting_under_its_name_and_conduits_is_refused(files: Files) -> None:
    text = (FILES / "postgres-s3.yaml").read_text() + "          bucket: another\n"
    [finding] = files.load(text, plugins=True).findings
    assert (finding.code, finding.line) == ("E205", 27)
    assert "'aws.bucket' is Conduit's name of 'bucket'; keep one of them" in finding.message


def test_keys_without_a_value_are_as_if_they_were_not_there(files: Files) -> None:
    text = files.with_pipeline("processors:\nschedule:\ndead-letter-queue:\ndescription:", destination="delivery:")
    result = files.load(text.replace("{path: in.txt}", ""))
    assert result.findings == []
    assert result.pipelines[0].sources[0].settings == {}


@pytest.mark.parametrize("version", ["2.2", '"2.2"', "2.1", '"2.0"', "2.0"])
def test_versions_are_read_as_number_and_as_text(files: Files, version: str) -> None:
    assert len(files.load(files.with_pipeline().replace('"2.2"', version)).pipelines) == 1


def test_an_unknown_minor_version_is_read_as_the_latest_with_a_warning(files: Files) -> None:
    result = files.load(files.with_pipeline().replace('"2.2"', "2.12"))
    assert [p.id for p in result.pipelines] == ["p"]
    assert [(f.code, f.line, f.message) for f in result.findings] == [
        ("W102", 1, "version 2.12 is unknown; read as 2.2")
    ]


def test_version_1_is_refused_with_what_to_do(files: Files) -> None:
    result = files.load("version: 1.1\npipelines:\n  p:\n    connectors:\n      in: {type: source}\n")
    assert result.pipelines == []
    (finding,) = result.findings
    assert (finding.line, finding.column, finding.code) == (1, 1, "E005")
    assert "turn the maps pipelines, connectors and processors into lists" in finding.hint


def test_keys_newer_than_the_files_version_warn(files: Files) -> None:
    keys = "processors:\n  - {id: a, plugin: filter, condition: 'true'}"
    result = files.load(files.with_pipeline(keys).replace('"2.2"', '"2.0"'))
    assert [f.code for f in result.findings] == ["W103", "W103"]
    assert len(result.pipelines) == 1


def test_a_broken_pipeline_breaks_only_itself(files: Files) -> None:
    good = files.with_pipeline()
    broken = good.replace("id: p", "id: broken").replace("type: source", "type: sauce")
    result = files.load(good + broken.split("pipelines:\n")[1] + "---\n" + good.replace("id: p", "id: q"))

    assert [p.id for p in result.pipelines] == ["p", "q"]
    assert [(f.pipeline, f.code) for f in result.errors] == [("broken", "E103")]


def test_a_broken_document_leaves_those_before_it(files: Files) -> None:
    result = files.load(files.with_pipeline() + "---\npipelines: [\n")
    assert [p.id for p in result.pipelines] == ["p"]
    assert [f.code for f in result.errors] == ["E002"]


def test_a_missing_variable_breaks_the_pipeline_that_uses_it(files: Files) -> None:
    text = files.with_pipeline().replace("in.txt", '"${NOWHERE}/in.txt"')
    text += files.with_pipeline().replace("id: p", "id: q").split("pipelines:\n")[1]
    result = files.load(text)
    assert [p.id for p in result.pipelines] == ["q"]
    assert [(f.pipeline, f.code) for f in result.errors] == [("p", "E004")]


def test_the_value_of_a_variable_never_gets_into_a_message(files: Files) -> None:
    result = files.load(files.with_pipeline("status: ${TOKEN}"), env={"TOKEN": "hunter2hunter2"})
    (finding,) = result.errors
    assert "hunter2" not in f"{finding} {finding.hint}"
    assert "${TOKEN}" in finding.message


@pytest.mark.proves("F2")
def test_all_that_is_wrong_with_a_file_is_told_at_once(files: Files) -> None:
    text = files.with_pipeline(
        "micro-batch: {max-records: many}\nlag-budget: {records: -5}\nschedule: now and then\nwake: [nobody]",
        source="colour: red\nprocessors: [{id: a, plugin: field.convert, settings: {type: cow, colour: red}}]",
        destination="delivery: {retry: lots, pipe: sequential, order-by: none}\nack-on: stored",
    )
    text = text.replace("{path: in.txt}", "{format: xml, colour: red, null-values: [], shards: 3}")
    text += (
        files.with_pipeline().replace("id: p", "id: q").replace("type: source", "type: sauce").split("pipelines:\n")[1]
    )
    found = [(f.line, f.code) for f in files.load(text, plugins=True).errors]
    assert found == [
        (8, "E205"),  # path is missing
        (8, "E205"),  # format: xml
        (8, "E205"),  # colour
        (8, "E205"),  # shards
        (9, "E101"),  # colour
        (10, "E205"),  # type: cow
        (10, "E205"),  # colour
        (10, "E205"),  # field is missing
        (15, "E103"),  # retry: lots
        (15, "E209"),  # sequential, order-by: none
        (16, "E107"),  # ack-on
        (17, "E103"),  # many
        (18, "E103"),  # -5
        (19, "E208"),  # now and then
        (20, "E215"),  # nobody
        (24, "E103"),  # sauce; not that there is no source
    ]


@pytest.mark.proves("F2")
def test_of_several_settings_whose_values_are_wrong_each_is_told(files: Files) -> None:
    text = files.with_pipeline().replace("plugin: file", "plugin: http", 1)
    wrong = "{url: 'http://x', cursor.next: link, timeout: soon, attempts: 0}"
    found = files.load(text.replace("{path: in.txt}", wrong), plugins=True).errors
    assert [f.column for f in found] == [19 + wrong.index(name) for name in ("timeout", "attempts")]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_a_file_without_anything_is_no_error(files: Files, text: str) -> None:
    assert files.load(text).errors == []


def test_a_file_that_cannot_be_read_is_a_finding(files: Files) -> None:
    missing = load_file(files.folder / "missing.yaml")
    assert [f.code for f in missing.errors] == ["E001"]
    (files.folder / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "not UTF-8" in load_file(files.folder / "latin.yaml").errors[0].message


def test_the_digest_follows_what_shapes_delivery_and_not_where_the_file_is(files: Files) -> None:
    one = files.load(files.with_pipeline(), name="a.yaml").pipelines[0]
    moved = files.load("\n\n" + files.with_pipeline(), name="b.yaml").pipelines[0]
    other = files.load(files.with_pipeline(destination="delivery: {retry: 1}")).pipelines[0]
    assert one.digest() == moved.digest() != other.digest()
    # And not what is shown of it
    masked = files.load(files.with_pipeline("mask: .Payload.After.card")).pipelines[0]
    assert (masked.mask, masked.digest()) == ((".Payload.After.card",), one.digest())
    assert version_of(masked) == version_of(one)
