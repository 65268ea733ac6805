"""A changed text of somebody who may look, but not run code here, learns nothing that is not shown anyway."""

from __future__ import annotations

from pathlib import Path

from conduit_tasks.operate.untrusted import Names, trusted
from conduit_tasks.pipeline.hidden import without_secrets
from conduit_tasks.pipeline.load import load_text
from conduit_tasks.record.hidden import REMEMBERED, Hidden
from conduit_tasks.record.record import Record
from conduit_tasks.record.shown import Shown
from tests.operate.test_trying import after, folder, step, tried

__all__ = ["folder"]
TEXT = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: in.jsonl}}
      - id: out
        type: destination
        plugin: log
        trigger: {filters: [{exact: {team: "${REGION}"}}, {sql: "INT(token) > 1"}]}
    processors:
      - {id: stamp, plugin: field.set, settings: {field: .Payload.After.token, value: "${REGION}"}}
"""
MORE = "      - {id: x, plugin: field.set, settings: {field: .Payload.After.z, value: '%s'}}\n"


def put(folder: Path) -> None:
    (folder / "include" / "pipelines" / "p.yaml").write_text(TEXT)


def test_a_secret_variable_cannot_be_encoded_by_a_processor_that_is_added(folder: Path) -> None:
    put(folder)
    steps = tried(text=TEXT + MORE % "{{ .Payload.After.token | b64enc }}")
    assert after(step(steps, "x"))[0]["z"] == "Kioq", "the base64 of ***"


def test_words_of_the_text_do_not_tell_whether_they_are_a_variables_value(folder: Path) -> None:
    put(folder)
    text = TEXT.rpartition("      - {id: stamp")[0] + MORE % '{{ fail "north-secret ${REGION}" }}'
    one = step(tried(text=text), "x")
    assert "north-secret" in one["error"]
    assert "north-secret" in one["fault"]["expression"]


def test_filters_and_their_errors_show_neither_variables_nor_secrets(folder: Path) -> None:
    put(folder)
    for text in (None, TEXT):
        exact, sql = step(tried(text=text, metadata={"token": "hush-hush"}), "destinations.out trigger")["filters"]
        assert exact["filter"] == {"exact": {"team": "${REGION}"}}
        assert (sql["attributes"], "hush" in sql["error"]) == ({"token": "***"}, False)


def test_what_is_masked_of_a_stored_record_is_masked_for_processors_as_well() -> None:
    record = Record(b"1", "create", {"token": "hush-hush"}, b"k", None, {"a": "hush-hush", "n": 1})
    masked = Shown().masked(record)
    assert (masked.meta(), masked.key, masked.after) == ({"token": "***"}, b"k", {"a": "***", "n": 1})


def test_a_plugin_that_the_file_in_force_does_not_have_is_not_even_loaded(folder: Path) -> None:
    put(folder)
    text = TEXT + "      - {id: x, plugin: no.such, settings: {a: b}}\n"
    [pipeline] = load_text(text, "", env=Names()).pipelines
    [force] = load_text(TEXT, str(folder / "include" / "pipelines" / "p.yaml")).pipelines
    _, trust = trusted(pipeline, force)
    assert "is not in the file in force" in trust.why(pipeline.processors[1])
    assert step(tried(text=text), "x")["outcome"] == "left out"


def test_masked_texts_are_found_cut_off_and_as_other_forms_write_them() -> None:
    hidden = Hidden()
    hidden.add('pa"ss wörd-' + "x" * 400)
    assert hidden.within("cannot convert 'pa\"ss wörd-xxxxx'") == "cannot convert '***'"
    assert "ss" not in hidden.within(r"{\"a\": \"pa\"ss w\u00f6rd-xxxx…".replace('pa"', r"pa\""))
    for n in range(REMEMBERED):
        hidden.add(f"a{n:08}")
    assert hidden.within("anything") == "***", "with too many of them nothing is shown"


def test_comments_defaults_and_texts_with_passwords_within_are_hidden() -> None:
    shown = without_secrets(
        "# password: hush\na: 1  # kept\npassword: '${DB:-hush}'\nurl: jdbc:postgresql://u:hush@h/db\n"
        'dsn: "host=h password=hush"\ntoken: |\n  hush\nscript: |\n  const token = "hush";\nkey: ${KEY}\n'
    )
    assert "hush" not in shown
    assert "# kept" in shown
    assert "\nkey: ${KEY}\n" in shown
