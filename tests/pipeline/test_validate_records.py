"""`conduit validate` tries what is written on the first records of sources that this machine reads by itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conduit_tasks.pipeline import validate_records
from conduit_tasks.pipeline.findings import Finding
from conduit_tasks.pipeline.load import load_file
from conduit_tasks.settings import forget
from tests.pipeline.conftest import Files

Tried = Callable[..., list[Finding]]
ORDERS = "".join(f'{{"order": {n}, "amount": {n * 10}, "kind": "{"ab"[n % 2]}"}}\n' for n in range(10))


@pytest.fixture
def tried(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """What is found in a pipeline with these parts, over a file of ten orders, however busy the machine is."""
    monkeypatch.setattr(validate_records, "SECONDS", 60.0)
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    monkeypatch.setattr(validate_records, "SECONDS", 60.0)  # the first look imports what it needs
    forget()
    (tmp_path / "in.jsonl").write_text(ORDERS)

    def find(keys: str = "", settings: str = "path: in.jsonl, format: jsonl", **parts: str) -> list[Finding]:
        text = files.with_pipeline(keys, **parts).replace("path: in.txt", settings)
        return load_file(files.write(text), plugins=True, records=True, env={}).findings

    return find


def processor(plugin: str, settings: str, condition: str = "") -> str:
    more = f", condition: '{{{{ {condition} }}}}'" if condition else ""
    return f"processors:\n  - {{id: a, plugin: {plugin}, settings: {{{settings}}}{more}}}"


SET = "field: .Metadata.size, value: large"


@pytest.mark.parametrize(
    ("parts", "place", "said", "hint"),
    [
        ({"source": processor("field.set", SET, "ge .Payload.After.amuont 5")}, "condition:", "After.amuont", "amount"),
        ({"source": processor("field.set", SET, "gt .Payload.After.kind 50")}, "condition:", "fails on all of the", ""),
        (
            {"source": processor("field.set", "field: .Key, value: '{{ .Payload.After.ordr }}'")},
            "value:",
            "ordr",
            "order",
        ),
        ({"source": processor("field.convert", "field: .Payload.After.kind, type: int")}, "{id: a", "fails on all", ""),
        ({"keys": processor("filter", "", "eq .Payload.After.knd 1")}, "condition:", ".Payload.After.knd", "kind"),
        ({"destination": processor("filter", "", "gt .Payload.After.kind 1")}, "condition:", "fails on all of", ""),
        (
            {
                "source": processor("field.set", SET),
                "destination": "trigger: {filters: [{exact: {siez: large}}]}",
            },
            "{exact",
            "the attribute 'siez'",
            "size",
        ),
        (
            {"settings": "path: in.jsonl, format: jsonl, cloudevents.type: '{{ .Payload.After.kinds }}'"},
            "cloudevents.type:",
            "kinds",
            "kind",
        ),
    ],
)
def test_what_does_not_fit_the_first_records_is_warned_of_at_its_place(
    tried: Tried, parts: dict[str, str], place: str, said: str, hint: str
) -> None:
    [finding] = tried(**parts)
    line = Path(finding.file).read_text().splitlines()[finding.line - 1]
    assert (finding.code, line[finding.column - 1 :][: len(place)]) == ("W206", place)
    assert said in finding.message
    assert hint in finding.hint


@pytest.mark.parametrize(
    "parts",
    [
        # It fits some records.
        {"source": processor("field.set", SET, 'eq .Payload.After.kind "a"')},
        # A field that none has, and none has nearly: it may come later.
        {"source": processor("field.set", SET, "ne .Payload.After.voucher nil")},
        # A name within a text is no field.
        {"source": processor("field.set", SET, 'eq .Payload.After.kind ".Payload.After.amuont"')},
        # A field that an earlier processor made; a new one is not a misspelt one.
        {
            "source": "processors:\n"
            "  - {id: a, plugin: field.set, settings: {field: .Payload.After.amounts, value: '1'}}\n"
            "  - {id: b, plugin: filter, condition: '{{ eq .Payload.After.amounts \"2\" }}'}"
        },
        # Behind what may change anything, nothing can be said.
        {
            "source": "processors:\n"
            "  - {id: a, plugin: dedupe, settings: {key: .Payload.After.order}}\n"
            "  - {id: b, plugin: filter, condition: '{{ ge .Payload.After.amuont 50 }}'}"
        },
        # Nothing to look at.
        {
            "settings": "path: none.jsonl, format: jsonl",
            "source": processor("filter", "", "ge .Payload.After.amuont 5"),
        },
        # It is meant to fail.
        {"source": processor("error", "message: no", "true")},
    ],
)
def test_what_may_be_right_is_not_warned_of(tried: Tried, parts: dict[str, str]) -> None:
    assert tried(**parts) == []


@pytest.mark.parametrize(
    ("plugin", "settings"),
    [
        ("field.convert", "field: .Payload.After.amuont, type: float"),
        ("field.exclude", "fields: .Payload.After.amuont"),
        ("field.rename", "mapping: '.Payload.After.amuont:total'"),
        ("mask", "fields: .Payload.After.amuont"),
        ("json.encode", "field: .Payload.After.amuont"),
        ("json.decode", "field: .Payload.After.amuont"),
        ("base64.encode", "field: .Payload.After.amuont"),
        ("base64.decode", "field: .Payload.After.amuont"),
    ],
)
def test_what_reads_converts_or_removes_a_field_does_not_make_it_there(
    tried: Tried, plugin: str, settings: str
) -> None:
    # Given a processor that names the misspelt field, in front of a condition that does, too
    [finding] = tried(
        source=f"processors:\n  - {{id: a, plugin: {plugin}, settings: {{{settings}}}}}\n"
        "  - {id: b, plugin: filter, condition: '{{ ge .Payload.After.amuont 50 }}'}"
    )
    # Then the condition is warned of
    line = Path(finding.file).read_text().splitlines()[finding.line - 1]
    assert line[finding.column - 1 :].startswith("condition:")
    assert "amount" in finding.hint


def test_made_up_records_are_looked_at_too(tried: Tried, files: Files) -> None:
    text = files.with_pipeline(source=processor("filter", "", "ge .Payload.After.amuont 5"))
    text = text.replace("plugin: file", "plugin: generator", 1).replace(
        "path: in.txt", "format.type: structured, format.options.amount: int, rate: '1'"
    )
    [finding] = load_file(files.write(text), plugins=True, records=True, env={}).findings
    assert "amuont" in finding.message


def test_behind_the_fan_in_nothing_is_said_where_one_source_cannot_be_looked_at(tried: Tried, files: Files) -> None:
    text = files.with_pipeline(processor("filter", "", "ge .Payload.After.amuont 5")).replace(
        "in.txt", "in.jsonl, format: jsonl"
    )
    other = "      - {id: api, type: source, plugin: http, settings: {url: 'http://127.0.0.1:9/', cursor.next: link}}\n"
    text = text.replace("      - id: out\n", f"{other}      - id: out\n")
    assert load_file(files.write(text), plugins=True, records=True, env={}).findings == []


def test_nothing_is_changed_and_what_hangs_is_left_behind(
    tried: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a source that would wait for ever
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(validate_records, "SECONDS", 0.2)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    # Then it is not waited for, and nothing is written
    assert tried(settings="path: pipe") == []
    tried()
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert {path for path in after if path not in before} == {tmp_path / "pipeline.yaml"}
    # Someone writes, so that the thread can end
    if any(thread.name == "first records of in" for thread in threading.enumerate()):
        os.close(os.open(tmp_path / "pipe", os.O_RDWR | os.O_NONBLOCK))
