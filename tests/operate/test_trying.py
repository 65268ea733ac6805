"""What a pipeline's file makes of one record, step by step: `operate.trying`, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import orjson
import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.operate.ask import Ask
from conduit_tasks.operate.try_child import run
from conduit_tasks.operate.trying import Outside
from conduit_tasks.settings import forget

PIPELINE = """\
version: "2.2"
pipelines:
  - id: p
    mask: [.Payload.After.card]
    connectors:
      - id: in
        type: source
        plugin: file
        settings:
          path: in.jsonl
          cloudevents.type: 'made.{{ .Payload.After.kind }}'
          cloudevents.team: t
        processors:
          - id: legs
            plugin: split
            settings: {field: .Payload.After.legs}
            condition: '{{ hasKey .Payload.After "legs" }}'
      - id: all
        type: destination
        plugin: log
        processors:
          - {id: ask, plugin: webhook.http, settings: {request.url: "http://localhost:1/"}}
          - {id: stamp, plugin: field.set, settings: {field: .Payload.After.region, value: "${REGION}"}}
      - id: made
        type: destination
        plugin: log
        trigger: {filters: [{prefix: {type: made.}}, {sql: "INT(kind) > 1"}]}
    processors:
      - {id: drop, plugin: filter, condition: '{{ eq .Metadata.drop "1" }}'}
      - id: js
        plugin: custom.javascript
        settings:
          script: |
            function process(rec) {
              rec.Payload.After.copy = rec.Payload.After.card;
              if (rec.Payload.After.bad) { return rec.no.such; }
              return rec;
            }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    monkeypatch.setenv("REGION", "north-secret")
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    (tmp_path / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    forget()
    yield tmp_path
    forget()


def tried(after: Any = None, *, text: str | None = None, own: bool = False, **more: Any) -> list[dict[str, Any]]:
    """The steps of a record with this payload and metadata."""
    said: list[dict[str, Any]] = []
    record = {"payload": {"after": after if after is not None else {"kind": "a"}}, "metadata": more.pop("metadata", {})}
    ask = Ask("p", record=more.pop("record", orjson.dumps(record).decode()), text=text, own=own, **more)
    run(ask, said.append, Outside(nullcontext()))
    return [each for each in said if "step" in each]


def said(steps: list[dict[str, Any]]) -> list[str]:
    return [f"{s['node']} {s.get('processor', s['step'])} {s['outcome']}" for s in steps]


def step(steps: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(s for s in steps if s.get("processor") == name or f"{s['node']} {s['step']}" == name)


def after(one: dict[str, Any]) -> list[Any]:
    return [record["payload"]["after"] for record in one["after"]]


def test_each_processor_trigger_and_destination_is_a_step_with_the_record_before_and_after_it(folder: Path) -> None:
    # When a record is tried that is split in two
    steps = tried({"kind": "a", "legs": [1, 2]})
    # Then every step says what became of it
    assert said(steps) == [
        "sources.in in:cloudevents.type changed",
        "sources.in legs changed",
        "processors drop skipped",
        "processors js unchanged",
        "destinations.all trigger wanted",
        "destinations.all ask left out",
        "destinations.all stamp changed",
        "destinations.all sent sent",
        "destinations.made trigger not wanted",
    ]
    legs = step(steps, "legs")
    assert [record["payload"]["after"] for record in legs["before"]] == [{"kind": "a", "legs": [1, 2]}]
    assert after(legs) == [{"kind": "a", "legs": 1}, {"kind": "a", "legs": 2}]
    assert legs["after_count"] == 2
    assert step(steps, "ask")["why"] == "makes HTTP requests: allow calls to have it do so"
    assert after(step(steps, "destinations.all sent"))[0] == {"kind": "a", "legs": 1, "region": "north-secret"}


def test_a_trigger_says_which_filter_does_not_match_what_the_record_has_and_where_it_is_written(folder: Path) -> None:
    steps = tried(metadata={"kind": "x"})
    prefix, sql = step(steps, "destinations.made trigger")["filters"]
    assert (prefix["matches"], prefix["attributes"]) == (True, {"type": "made.a"})
    assert (sql["matches"], sql["attributes"]) == (False, {"kind": "x"})
    assert sql["error"].startswith("cast: ")
    assert sql["place"] == {"line": 27, "column": 54}
    assert said(tried(metadata={"kind": "2"}))[-2:] == [
        "destinations.made trigger wanted",
        "destinations.made sent sent",
    ]


def test_a_filtered_record_ends_there(folder: Path) -> None:
    assert said(tried(metadata={"drop": "1"}))[-1] == "processors drop filtered"


def test_a_failure_names_the_expression_and_its_place_in_the_file(folder: Path) -> None:
    # A line of a script in a block
    one = tried({"kind": "a", "bad": 1})[-1]
    assert (one["outcome"], one["processor"], one["error_class"]) == ("failed", "js", "processor")
    assert one["error"].startswith("TypeError")
    assert (one["fault"]["key"], one["fault"]["line"]) == ("settings.script", 3)
    line, column = one["place"]["line"], one["place"]["column"]
    assert PIPELINE.splitlines()[line - 1][column - 1 :].startswith("rec.no.such")
    # A template
    one = tried("raw")[0]
    assert one["fault"] == {
        "key": "settings.value",
        "expression": "made.{{ .Payload.After.kind }}",
        "line": None,
        "column": None,
    }
    assert PIPELINE.splitlines()[one["place"]["line"] - 1][one["place"]["column"] :].startswith("made.")


@pytest.mark.parametrize(
    ("was", "now", "processor", "fault", "marked"),
    [
        ('.Metadata.drop "1"', '.Metadata.drop "1', "drop", "condition", '"1 }}'),
        ("eq .Metadata.drop", "eq .Payload.After.kind.x", "drop", "condition", "'{{ eq .Payload"),
        (
            "field: .Payload.After.legs",
            "field: .Payload.After.kind.legs",
            "legs",
            "settings.field",
            ".Payload.After.kind",
        ),
        ("field: .Payload.After.legs", "field: .Nothing", "legs", "settings.field", ".Nothing"),
        ("plugin: split", "plugin: splitt", "legs", None, "- id: legs"),
    ],
)
def test_whatever_of_a_processor_is_wrong_is_marked(
    was: str, now: str, processor: str, fault: str | None, marked: str, folder: Path
) -> None:
    text = PIPELINE.replace(was, now)
    one = step(tried({"kind": "a", "legs": [1]}, text=text, own=True), processor)
    assert one["outcome"] == "failed"
    assert (one["fault"] or {}).get("key") == fault
    place = one["place"]
    shown = text.splitlines()[place["line"] - 1][place["column"] - 1 :]
    assert shown.startswith(marked.removeprefix("- ")), shown


def test_a_wrong_filter_is_marked_and_the_other_destinations_are_tried(folder: Path) -> None:
    steps = tried(text=PIPELINE.replace("INT(kind)", "INT(kind"), own=True)
    assert "destinations.all sent sent" in said(steps)
    one = step(steps, "destinations.made trigger")
    assert (one["outcome"], one["fault"]["key"], one["place"]["line"]) == ("failed", "trigger.filters[1]", 27)


def test_masked_fields_are_shown_nowhere_also_where_they_are_copied_to(folder: Path) -> None:
    steps = tried({"kind": "a", "card": "4111-1111", "user": {"apiKey": "hush-hush"}, "bad": "4111-1111 hush-hush"})
    text = orjson.dumps(steps).decode()
    assert "4111" not in text
    assert "hush" not in text
    assert step(steps, "js")["before"][0]["payload"]["after"]["bad"] == "*** ***"


def test_a_record_enters_at_the_node_that_is_said(folder: Path) -> None:
    assert said(tried(node="processors"))[0] == "processors drop skipped"
    assert said(tried(node="destinations.made")) == ["destinations.made sent sent"]
    with pytest.raises(ConfigError, match=r"no node nowhere; a record enters at sources.in, processors, dest"):
        tried(node="nowhere")


def test_with_several_sources_the_node_has_to_be_said(folder: Path) -> None:
    more = "      - {id: other, type: source, plugin: file, settings: {path: x}}\n      - id: all\n"
    text = PIPELINE.replace("      - id: all\n", more)
    with pytest.raises(ConfigError, match=r"several sources: say at which node it enters, one of sources.in, so"):
        tried(text=text, own=True)
    assert said(tried(text=text, own=True, node="sources.other"))[0] == "processors drop skipped"


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("", "the record is no JSON"),
        ("[1]", "it is no OpenCDC record: it is no object"),
        ('{"a": 1}', 'a record has no a; write {"payload"'),
        ('{"payload": {"after": 1}}', "key and payload must be a string"),
        ('{"position": "ü"}', "position must be base64"),
        ('{"payload": {"after": ' + '{"a":' * 210 + "1" + "}" * 210 + "}}", "nested deeper than 200 levels"),
    ],
)
def test_what_is_no_record_is_refused(record: str, says: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        tried(record=record)
    assert says in str(refused.value)


def test_a_file_without_the_pipeline_or_with_errors_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the file has no pipeline p; it has: q"):
        tried(text=PIPELINE.replace("id: p\n", "id: q\n"), own=True)
    told: list[dict[str, Any]] = []
    wrong = Ask("p", record="{}", text=PIPELINE.replace("    mask:", "    foo: 1\n    mask:"), own=True)
    with pytest.raises(ConfigError, match="E101 unknown key 'foo'"):
        run(wrong, told.append, Outside(nullcontext()))
    assert [finding["code"] for finding in told[0]["findings"]] == ["E101"]
    (folder / "include" / "pipelines" / "p.yaml").unlink()
    with pytest.raises(ConfigError, match="no pipeline 'p'"):
        tried()


def test_a_text_of_somebody_else_runs_nothing_new_and_sees_no_variable(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a file in force with a variable, and a changed text that asks for more
    new = (
        "          - {id: more, plugin: field.set, settings: {field: .Payload.After.again, value: '${REGION}'}}\n"
        "          - {id: f, plugin: python, settings: {call: 'os:getcwd'}}\n"
        "          - {id: h, plugin: mask, settings: {fields: .Key, method: hash, salt.env: REGION}}\n"
        "          - {id: s, plugin: custom.javascript, settings: {script.path: /etc/passwd}}\n"
        "          - {id: e, plugin: enrich, settings: {on: .Key, key: a, path: /etc/x.csv}}\n"
        "          - {id: c, plugin: schema.check, settings: {schema.path: /etc/passwd}}\n"
        "          - {id: d, plugin: dedupe}\n"
    )
    text = PIPELINE.replace("mask: [.Payload.After.card]", "mask: []")
    text = text.replace("      - id: made\n", f"{new}      - id: made\n")
    # When it is tried
    steps = tried({"kind": "a", "card": "4111-1111"}, text=text)
    # Then what is new and not of the record alone is left out
    left = [s["processor"] for s in steps if s["outcome"] == "left out"]
    assert left == ["ask", "f", "h", "s", "e", "c"]
    assert "is not in the file in force" in step(steps, "f")["why"]
    # And variables have their names, but where the file in force has the same processor
    [sent] = after(step(steps, "destinations.all sent"))
    assert (sent["region"], sent["again"]) == ("north-secret", "${REGION}")
    # And what the file in force masks stays masked
    assert "4111" not in orjson.dumps(steps).decode()
    # And whoever may run code sees all of it done
    assert step(tried(text=text.replace("enrich", "dedupe"), own=True), "f")["outcome"] == "failed"


def test_a_pipeline_of_plain_steps_gives_what_its_unit_tests_give(folder: Path) -> None:
    from conduit_tasks.operate.walk import walk
    from conduit_tasks.pipeline.load import load_text
    from conduit_tasks.record.record import Record

    text = PIPELINE.replace('webhook.http, settings: {request.url: "http://localhost:1/"}', "dedupe")
    [pipeline] = load_text(text, "p").pipelines
    record = Record(b"1", after={"kind": "2", "legs": [1, 2]}, metadata={"kind": "2"})
    walked = walk(pipeline, [("in", record)])
    steps = tried({"kind": "2", "legs": [1, 2]}, metadata={"kind": "2"})
    for id, arrived in walked.arrived.items():
        assert step(steps, f"destinations.{id} sent")["after"] == [each.to_opencdc() for each in arrived]


def test_errors_and_expressions_show_names_of_variables_not_their_values(folder: Path) -> None:
    # Given a file in force whose expression has the value of a variable in it, and fails
    text = PIPELINE.replace('value: "${REGION}"', "value: '${REGION} {{ div 1 .Payload.After.zero }}'")
    (folder / "include" / "pipelines" / "p.yaml").write_text(text)
    # When it is tried as it is, and as somebody has changed it elsewhere
    for changed in (None, text.replace("cloudevents.team: t", "cloudevents.team: u")):
        one = step(tried({"kind": "a", "zero": 0}, text=changed), "stamp")
        # Then the value is in neither
        assert one["outcome"] == "failed"
        assert "north" not in orjson.dumps(one).decode()
        assert one["fault"]["expression"] == "${REGION} {{ div 1 .Payload.After.zero }}"
        assert one["error"].startswith("template '${REGION} ")


def test_an_endless_script_fails_its_step(folder: Path) -> None:
    loop = "{timeout: 50ms, script: 'function process(rec) { for (;;) {} }'}"
    text = f"{PIPELINE}      - {{id: loop, plugin: custom.javascript, settings: {loop}}}\n"
    one = tried(text=text)[-1]
    assert (one["processor"], one["outcome"], one["fault"]["key"]) == ("loop", "failed", "settings.script")
    assert "interrupted" in one["error"]


def test_a_letter_enters_where_a_redrive_has_it_enter(folder: Path) -> None:
    from conduit_tasks.operate.trying import Entry, entry_of_letter
    from conduit_tasks.pipeline.load import load_text
    from conduit_tasks.topology import Node

    frame = '      - {id: q, plugin: sql, settings: {query: "SELECT * FROM records"}}\n'
    more = "      - {id: z, plugin: filter}\n      - {id: y, plugin: filter}\n"
    [pipeline] = load_text(f"{PIPELINE}{frame}{more}", "p").pipelines
    # What was sent has passed its destination's processors; what one of them failed has not
    assert entry_of_letter(pipeline, "destinations.all") == Entry(Node("destinations.all"), sent=True)
    assert entry_of_letter(pipeline, "destinations.all/stamp") == Entry(Node("destinations.all"))
    # Record-wise processors beside each other saw it in one pass; one over DataFrames has a pass of its own
    assert entry_of_letter(pipeline, "processors/js") == Entry(Node("processors"), 0)
    assert entry_of_letter(pipeline, "processors/q") == Entry(Node("processors"), 2)
    assert entry_of_letter(pipeline, "processors/y") == Entry(Node("processors"), 3)
    assert entry_of_letter(pipeline, "processors/gone") == Entry(Node("processors"), 0)
    with pytest.raises(ConfigError, match=r"has no node sources.gone"):
        entry_of_letter(pipeline, "sources.gone/x")
    # And what needs Spark is left out where that is not started
    assert step(tried(text=f"{PIPELINE}{frame}", own=True), "q")["why"].startswith("sees a whole micro-batch, in Spark")


def test_what_a_function_makes_that_cannot_be_written_fails_as_in_a_run(folder: Path) -> None:
    (folder / "odd_values_of_a_trial.py").write_text(
        "def odd(record):\n    record.after = {'x': {1}}\n    return record\n"
    )
    text = f"{PIPELINE}      - {{id: odd, plugin: python, settings: {{call: 'odd_values_of_a_trial:odd'}}}}\n"
    one = tried(text=text, own=True)[-1]
    assert (one["processor"], one["outcome"], one["error_class"]) == ("odd", "failed", "unwritable")


def test_a_module_that_cannot_be_imported_fails_its_step(folder: Path) -> None:
    text = f"{PIPELINE}      - {{id: odd, plugin: python, settings: {{call: 'include.no_such:odd'}}}}\n"
    one = tried(text=text, own=True)[-1]
    assert (one["outcome"], one["error_class"], one["fault"]["key"]) == ("failed", "config", "settings.call")
