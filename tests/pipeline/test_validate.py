"""Every check: its code, its place, and that it says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.pipeline.findings import CODES
from conduit_tasks.settings import STORES
from tests.pipeline.conftest import Files

Only = Callable[..., tuple[int, int, str, str, str]]
SOURCE_LINE, DESTINATION_LINE, END = 9, 13, 13
"""Where the parts of `Files.with_pipeline` put their first line (with nothing before it)."""


@pytest.mark.proves("C1")
def test_what_a_pipeline_lacks_is_named(files: Files) -> None:
    result = files.load('version: "2.2"\npipelines:\n  - id: empty\n')
    assert result.pipelines == []
    assert [(f.line, f.column, f.code) for f in result.errors] == [(3, 5, "E201"), (3, 5, "E202")]
    assert "'empty' has no source: there is nothing to read" in result.errors[0].message
    assert "has no destination: there is nowhere to deliver to" in result.errors[1].message


@pytest.mark.proves("C1")
def test_one_end_alone_is_not_enough(only: Only, files: Files) -> None:
    line, column, code, _message, hint = only(files.with_pipeline().replace("type: destination", "type: source"))
    assert (line, column, code) == (4, 5, "E202")
    assert hint == "add a connector with type: destination"


@pytest.mark.proves("F2", "F5")
@pytest.mark.parametrize(
    ("keys", "code", "place", "says"),
    [
        ("statuss: running", "E101", (13, 5), "did you mean 'status'?"),
        ("retry: 5", "E101", (13, 5), "'retry' belongs to delivery"),
        ("status: paused", "E103", (13, 5), "write one of 'running' or 'stopped'"),
        ("micro-batch: {max-records: many}", "E103", (13, 19), "write a whole number"),
        ("micro-batch: {max-bytes: 10 parsecs}", "E103", (13, 19), "is not a size"),
        ("micro-batch: 7", "E103", (13, 5), "write a map"),
        ("processors: {a: b}", "E103", (13, 5), "write a list"),
        ("processors: [{id: a}]", "E102", (13, 18), "'plugin' is missing"),
        ("processors: [{id: 'a b', plugin: filter}]", "E104", (13, 19), "1 to 128 of the characters"),
        (f"processors: [{{id: {'a' * 129}, plugin: filter}}]", "E104", (13, 19), "1 to 128 of the characters"),
        (
            "processors: [{id: a, plugin: filter}, {id: a, plugin: filter}]",
            "E105",
            (13, 44),
            "the processor id 'a' is used twice",
        ),
        ("schedule: now and then", "E208", (13, 5), "five fields"),
        ("replay-interval: '@continuous'", "E208", (13, 5), "a replay needs an interval"),
        ("schedule: '@continuous'\ndata-intervals: true", "E208", (14, 5), "has no intervals"),
        ("schedule: '@continuous'\nwake: [in]", "E215", (14, 5), "never sleeps"),
        ("wake: [inn]", "E215", (13, 12), "did you mean 'in'?"),
        ("wake: {sources: [out]}", "E215", (13, 22), "no source 'out'"),
        ("wake: {look: 200ms}", "E103", (13, 12), "a second at least"),
        ("wake: {pause: 0}", "E103", (13, 12), "write for example pause: 5s"),
        ("wake: {every: 5s}", "E101", (13, 12), "known are: look, pause, sources"),
        ("wake: true", "E103", (13, 5), "write a map"),
        ("drain-limit: 0", "E103", (13, 5), "above zero"),
        ("event-time: time_hour", "E212", (13, 5), "time_hour"),
        ("mask: [.Payload.After.card, card]", "E212", (13, 33), "'card', column 1"),
        ("index: [.Key, order]", "E212", (13, 19), "'order', column 1"),
        ("index: [.Payload.After]", "E212", (13, 13), "by a field in .Payload.After, by .Key or .Position"),
        ("index: [.Payload.After.password]", "E212", (13, 13), "its name says that it is secret"),
        ("index: [.Key]\nmask: [.Key.id]", "E212", (13, 13), ".Key.id is masked"),
        ("index: [.A, .B, .C, .D, .E, .F, .G, .H, .I]", "E103", (13, 5), "8"),
        ("mask: .Payload.Card", "E212", (13, 5), ".Payload has .Payload.Before and .Payload.After"),
        ("alerts: [{notifier: nope}]", "E212", (13, 15), "package.module.Class"),
        ("spool: {path: 'gopher://x'}", "E103", (13, 13), "s3://, gs://"),
        ("handlers: [{on: nacked, call: notify}]", "E212", (13, 29), "include.handlers:notify"),
        ("dead-letter-queue: {window-size: 5, window-nack-threshold: 5}", "E210", (13, 41), "below 5"),
        ("dead-letter-queue: {window-size: 0, window-nack-threshold: 5}", "W202", (13, 41), "no effect"),
        ("dead-letter-queue: {window-size: -1}", "E103", (13, 25), "write 0 or more"),
        ("micro-batch: {max-records: -1}", "E103", (13, 19), "write more than 0"),
        ("lag-budget: {records: -1}", "E103", (13, 18), "write more than 0"),
        ("error-recovery: {max-retries: -2}", "E103", (13, 22), "write -1 or more"),
        ("error-recovery: {backoff-factor: -1}", "E103", (13, 22), "write 1 or more"),
        ("error-recovery: {backoff-factor: twice}", "E103", (13, 22), "write a number"),
        ("error-recovery: {min-delay: -1s}", "E103", (13, 22), "write for example 200ms"),
        ("dead-letter-queue: {window-size: 10001}", "E103", (13, 25), "write 10000 or less"),
        ("dead-letter-queue: {plugin: builtin:log, window-size: 0}", "W203", (13, 25), "at most once"),
        ("lag-budget: {records: 1000}", "W201", (13, 18), "below one micro-batch of 500000"),
    ],
)
def test_a_wrong_key_of_the_pipeline_is_found_at_its_place(
    only: Only, files: Files, keys: str, code: str, place: tuple[int, int], says: str
) -> None:
    line, column, found, message, hint = only(files.with_pipeline(keys))
    assert (found, (line, column)) == (code, place)
    assert says in f"{message} {hint}"


@pytest.mark.parametrize(
    "key", ["trigger: {filters: []}", "delivery: {retry: 1}", "dead-letter-queue: {window-size: 0}"]
)
def test_what_belongs_to_destinations_is_refused_at_sources(only: Only, files: Files, key: str) -> None:
    line, column, code, message, _ = only(files.with_pipeline(source=key))
    assert (line, column, code) == (SOURCE_LINE, 9, "E107")
    assert key.split(":", maxsplit=1)[0] in message


def test_a_standalone_connector_that_is_not_there_is_named_with_its_folder(only: Only, files: Files) -> None:
    text = files.with_pipeline().replace("plugin: file", "plugin: standalone:salesforce@v1", 1)
    line, column, code, message, _hint = only(text, plugins=True)
    assert (line, column, code) == (7, 9, "E203")
    assert "'standalone:salesforce@v1' is not in" in message
    assert "CONDUIT_CONNECTORS" in message


def test_standalone_processors_are_refused_with_a_way_out(only: Only, files: Files) -> None:
    text = files.with_pipeline("processors: [{id: x, plugin: standalone:wasm}]")
    _line, _column, code, _message, hint = only(text)
    assert code == "E204"
    assert "entry point conduit.processors" in hint


def test_a_plugins_version_is_ignored_aloud(only: Only, files: Files) -> None:
    text = files.with_pipeline().replace("plugin: file", "plugin: builtin:file@v0.9.0", 1)
    assert only(text)[2] == "W105"


@pytest.mark.parametrize(
    ("change", "code", "line", "says"),
    [
        (("plugin: file", "plugin: fiel"), "E203", 7, "did you mean 'file'?"),
        (("{path: in.txt}", "{}"), "E205", 8, "path"),
        (("{path: in.txt}", "{path: in.txt, formatt: csv}"), "E205", 8, "format"),
    ],
)
def test_a_wrong_connector_is_found_by_its_own_checks(
    only: Only, files: Files, change: tuple[str, str], code: str, line: int, says: str
) -> None:
    found = only(files.with_pipeline().replace(*change, 1), plugins=True)
    assert (found[2], found[0]) == (code, line)
    assert says in f"{found[3]} {found[4]}"


def test_a_wrong_setting_is_found_where_it_is_written(only: Only, files: Files) -> None:
    text = files.with_pipeline().replace("{path: in.txt}", "\n          path: in.txt\n          format: papyrus", 1)
    line, column, code, _message, _ = only(text, plugins=True)
    assert (line, column, code) == (10, 11, "E205")


def test_a_connector_that_is_no_source_is_refused_as_one(only: Only, files: Files) -> None:
    found = only(files.with_pipeline().replace("plugin: file", "plugin: log", 1), plugins=True)
    assert (found[0], found[2]) == (7, "E204")


@pytest.mark.parametrize(
    ("keys", "code", "says"),
    [
        ("processors: [{id: a, plugin: field.sett}]", "E203", "did you mean 'field.set'?"),
        ("processors: [{id: a, plugin: filter, condition: '{{ if }}'}]", "E207", ""),
        ("processors: [{id: a, plugin: field.set, settings: {field: .Nope, value: x}}]", "E205", "Nope"),
        ("dead-letter-queue: {plugin: nowhere}", "E203", "no plugin 'nowhere'"),
    ],
)
def test_plugins_of_the_pipeline_are_checked(only: Only, files: Files, keys: str, code: str, says: str) -> None:
    line, _, found, message, hint = only(files.with_pipeline(keys), plugins=True)
    assert (line, found) == (END, code)
    assert says in f"{message} {hint}"


@pytest.mark.proves("T3")
def test_a_wrong_trigger_filter_is_found(only: Only, files: Files) -> None:
    text = files.with_pipeline(destination="trigger:\n  filters: [{exactly: {type: x}}]")
    line, column, code, _, _ = only(text, plugins=True)
    assert (line, column, code) == (14, 21, "E206")


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("---\n", "W106", (2, 1)),
        ("- a\n- b\n", "E006", (1, 1)),
        ('version: "2.2"\npipelines: {a: {}}\n', "E006", (2, 1)),
    ],
)
def test_a_document_that_is_no_pipeline_file_is_named(only: Only, text: str, code: str, place: tuple[int, int]) -> None:
    line, column, found, _, hint = only(text)
    assert (found, (line, column)) == (code, place)
    assert hint


def test_of_several_filters_the_wrong_one_is_found(only: Only, files: Files) -> None:
    filters = "trigger:\n  filters:\n    - {exact: {type: x}}\n    - {sql: 'type ='}"
    line, _, code, _, _ = only(files.with_pipeline(destination=filters), plugins=True)
    assert (line, code) == (16, "E206")


@pytest.mark.parametrize(("wake", "says"), [("[in]", "'in' (http) cannot be looked at"), ("{}", "none of the sources")])
def test_a_source_that_cannot_be_looked_at_between_two_runs_wakes_nobody(
    only: Only, files: Files, wake: str, says: str
) -> None:
    text = files.with_pipeline(f"wake: {wake}").replace("plugin: file", "plugin: http", 1)
    text = text.replace("{path: in.txt}", "{url: 'http://localhost:1/', cursor.next: etag}")
    _, _, code, message, hint = only(text, plugins=True)
    assert (code, says in message) == ("E215", True)
    assert "file, gateway and kafka" in hint
    assert files.load(files.with_pipeline(f"wake: {wake}"), plugins=True).findings == []


def test_every_code_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "pipeline-file.md").read_text()
    assert [code for code in CODES if f"`{code}`" not in documented] == []


def test_every_code_that_is_documented_is_reported_somewhere_and_tested() -> None:
    """Codes are written out wherever they are used, so that the source and the tests can be searched for them."""
    root = Path(__file__).parents[2]
    reported = "".join(f.read_text() for f in (root / "conduit_tasks").rglob("*.py") if f.name != "findings.py")
    tested = "".join(f.read_text() for f in (root / "tests").rglob("*.py"))
    assert [code for code in CODES if f'"{code}"' not in reported] == []
    assert [code for code in CODES if f'"{code}"' not in tested] == []


@pytest.mark.proves("T2")
@pytest.mark.parametrize(
    ("plugin", "durability", "code"),
    [
        ("file", "redis", "E107"),
        ("gateway", "s3 spool", "E214"),
        ("gateway", "spool", None),
        ("gateway", "redis", None),
    ],
)
def test_durability_belongs_to_the_gateway_and_a_journal_to_a_folder(
    files: Files, plugin: str, durability: str, code: str | None
) -> None:
    where, _, kept = durability.rpartition(" ")
    pipeline = f"spool: {{path: {where}://bucket}}" if where else ""
    text = files.with_pipeline(pipeline, source=f"durability: {kept}").replace("plugin: file", f"plugin: {plugin}", 1)
    assert [f.code for f in files.load(text).errors] == ([code] if code else [])


def test_a_wrong_condition_does_not_hide_wrong_settings(files: Files) -> None:
    processor = "{id: a, plugin: field.convert, settings: {field: .Nope, type: cow}, condition: '{{ oops'}"
    found = files.load(files.with_pipeline(destination=f"processors: [{processor}]"), plugins=True).errors
    assert sorted({f.code for f in found}) == ["E205", "E207"]


@pytest.mark.parametrize(
    ("processor", "code", "says"),
    [
        ("{id: a, plugin: nothing}", "E203", "no plugin 'nothing'"),
        ("{id: a, plugin: sql, settings: {query: SELECT * FROM records}}", "E204", "record-wise"),
        ("{id: a, plugin: filter, condition: '{{ oops'}", "E207", "condition"),
    ],
)
def test_processors_of_dead_letters_are_checked_like_others_and_see_one_record(
    only: Only, files: Files, processor: str, code: str, says: str
) -> None:
    keys = f"dead-letter-queue: {{processors: [{processor}]}}"
    line, _, found, message, hint = only(files.with_pipeline(destination=keys), plugins=True)
    assert (found, line) == (code, DESTINATION_LINE)
    assert says in f"{message} {hint} {code}" or code == "E207"


@pytest.mark.parametrize(
    ("queue", "code", "says"),
    [
        ("{plugin: spark, settings: {format: orc, path: out}}", "E204", "format: parquet"),
        ("{plugin: kafka, settings: {topic: t}}", "E205", "servers"),
        ("{plugin: sqs, settings: {queue: q, delai: 1s}}", "E205", "delai"),
        ("{plugin: generator}", "E204", "a source only"),
        ("{plugin: kaffka}", "E203", "kafka"),
    ],
)
def test_where_dead_letters_go_is_checked_as_a_destination_is(
    only: Only, files: Files, queue: str, code: str, says: str
) -> None:
    text = files.with_pipeline(destination=f"dead-letter-queue: {queue}")
    line, _, found, message, hint = only(text, plugins=True)
    assert (found, line) == (code, DESTINATION_LINE)
    assert says in f"{message} {hint}"


@pytest.mark.parametrize(
    ("keys", "codes"),
    [
        ("handlers: [{on: maybe, call: 'x y'}]", ["E103", "E212"]),
        ("handlers: [{call: 'x y'}]", ["E102", "E212"]),
        ("handlers: [{on: maybe, call: 7}, {on: acked, call: 'x y'}]", ["E103", "E212", "E212"]),
        ("alerts: [{notifier: nope, argument: {}}]", ["E101", "E212"]),
    ],
)
def test_both_faults_of_one_item_are_told_at_once(files: Files, keys: str, codes: list[str]) -> None:
    assert sorted(f.code for f in files.load(files.with_pipeline(keys)).errors) == codes


def test_every_scheme_that_can_be_opened_and_no_other_is_one_of_a_spool(files: Files) -> None:
    from pyarrow.fs import FileSystem

    for scheme in ("http", "az", "ftp", "gopher", "sftp", *STORES):
        try:
            FileSystem.from_uri(f"{scheme}:///x")
            known = True
        except (OSError, ValueError) as error:
            known = "Unrecognized filesystem type" not in str(error)
        errors = files.load(files.with_pipeline(f"spool: {{path: '{scheme}:///x'}}")).errors
        assert [f.code for f in errors] == ([] if known else ["E103"]), scheme
