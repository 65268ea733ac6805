"""`conduit records`: what a pipeline makes of a record, and the last records of a stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.cli.side_by_side import side_by_side
from tests.cli.conftest import Conduit
from tests.operate.asking import here

__all__ = ["here"]

PIPELINE = """\
version: "2.2"
pipelines:
  - id: p
    connectors:
      - id: in
        type: source
        plugin: file
        settings: {path: in.jsonl}
      - id: out
        type: destination
        plugin: log
        trigger: {filters: [{exact: {kind: a}}]}
    processors:
      - {id: route, plugin: field.set, settings: {field: .Payload.After.route, value: "{{ div 60 .Payload.After.n }}"}}
      - {id: ask, plugin: webhook.http, settings: {request.url: "http://localhost:1/"}}
"""


@pytest.fixture
def file(folder: Path) -> Path:
    (folder / "include" / "pipelines").mkdir(parents=True)
    (folder / "include" / "pipelines" / "p.yaml").write_text(PIPELINE)
    return folder / "include" / "pipelines" / "p.yaml"


@pytest.mark.slow
def test_a_record_is_shown_before_and_after_each_step(conduit: Conduit, file: Path) -> None:
    done = conduit("records", "try", "p", "--record", '{"metadata": {"kind": "b"}, "payload": {"after": {"n": 30}}}')
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert [line for line in lines if (": " in line and "(" in line) or "trigger" in line] == [
        "processors: route (field.set): changed",
        "processors: ask (webhook.http): left out",
        "destinations.out: trigger: not wanted",
    ]
    assert '"n": 30 | "n": 30,' in lines
    assert '> "route": "2"' in lines
    assert "It makes HTTP requests: allow calls to have it do so" in lines
    assert '{"exact": {"kind": "a"}} does not match; the record has kind = "b"' in lines


@pytest.mark.usefixtures("here")
def test_a_step_that_fails_is_marked_and_the_exit_code_is_1_also_in_json(conduit: Conduit, file: Path) -> None:
    record = file.parent / "record.json"
    record.write_text('{"payload": {"after": {"n": 0}}}')
    done = conduit("records", "try", "p", "--record", f"@{record}", "--format", "json")
    assert done.exit_code == 1
    [step] = [each for each in json.loads(done.stdout)["steps"] if each["outcome"] == "failed"]
    assert step["fault"]["expression"] == "{{ div 60 .Payload.After.n }}"
    # And from a changed file, the record from stdin
    changed = file.parent.parent / "changed.yaml"
    changed.write_text(PIPELINE.replace("div 60 .Payload.After.n }}", "div 60 .Payload.After.n"))
    arguments = ["records", "try", "p", "--record", "-", "--file", str(changed)]
    said = CliRunner().invoke(app, arguments, input=record.read_text())
    assert said.exit_code == 1
    place = PIPELINE.splitlines()[13].index('"{{ div') + 2
    assert f"line 14, column {place} of the file, settings.value:" in said.stdout
    assert said.stdout.splitlines()[4] == "    ^"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "give exactly one of --record, --letter and --place"),
        (("--record", "{}", "--letter", "a"), "give exactly one of --record, --letter and --place"),
        (("--record", "@none"), "--record: none cannot be read: No such file or directory"),
        (("--record", "@binary"), "binary is no text in UTF-8: invalid start byte at byte 0"),
        (("--record", "{}", "--file", "none"), "--file: none cannot be read: No such file or directory"),
        (("--letter", "0123"), "p has no dead letter 0123; `conduit dead-letters list p` has their ids"),
    ],
)
def test_what_cannot_be_tried_is_said_with_exit_code_2(
    arguments: tuple[str, ...], says: str, conduit: Conduit, file: Path, folder: Path
) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe")
    done = conduit("records", "try", "p", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr


def test_columns_differ_by_marks_and_what_is_equal_is_left_out_but_for_a_few_lines() -> None:
    before = [*"abcdefgh", "x" * 100]
    after = [*"abcdeFghi", "x" * 100]
    assert list(side_by_side(before, after, 43)) == [
        "…",
        f"{'d':20}   d",
        f"{'e':20}   e",
        f"{'f':20} | F",
        f"{'g':20}   g",
        f"{'h':20}   h",
        f"{'':20} > i",
        f"{'x' * 19}…   {'x' * 19}…",
    ]
    assert list(side_by_side(["a", "\x1b[31m"], ["a"], 43)) == [f"{'a':20}   a", f"{'�[31m':20} <"]
    assert list(side_by_side(["a"], ["a"], 43)) == []
