"""The YAML layer: locations, variables, duplicates, and what is no YAML."""

import os
from pathlib import Path

import pytest
import yaml

from conduit_tasks.pipeline.yaml import read


def codes(text: str, env: dict[str, str] | None = None) -> list[str]:
    return [f.code for d in read(text, "f.yaml", env or {}) for f in d.report.findings({})]


def test_scalars_are_kept_as_they_are_written() -> None:
    value = read("{a: 1.50, b: 007, c: yes, d: null, e: 'null', f: 2020-01-01}", "f", {})[0].value
    assert value == {"a": "1.50", "b": "007", "c": "yes", "d": None, "e": "null", "f": "2020-01-01"}


def test_every_key_and_item_has_its_place() -> None:
    document = read("a:\n  - x\n  - b:  1\n", "f", {})[0]
    assert document.report.locate(("a",)) == (1, 1)
    assert document.report.locate(("a", 0)) == (2, 5)
    assert document.report.locate(("a", 1, "b")) == (3, 5)
    assert document.report.locate(("a", 1, "nothing", "here")) == (3, 5)


def test_several_documents_are_read_each_with_its_own_places() -> None:
    one, two = read("a: 1\n---\nb: 2\n", "f", {})
    assert (one.value, two.value) == ({"a": "1"}, {"b": "2"})
    assert two.report.locate(("b",)) == (3, 1)


def test_variables_are_put_in_after_parsing_so_their_text_is_never_yaml() -> None:
    value = read("a: ${X}/${Y}\nb: $${X}\nc: $5 $(x)\n", "f", {"X": "u: [v", "Y": "#z"})[0].value
    assert value == {"a": "u: [v/#z", "b": "${X}", "c": "$5 $(x)"}


def test_a_variable_that_is_not_closed_is_text_and_the_rest_is_read_on() -> None:
    document = read("a: x${X}${X $$ $X ${Y\nb: '${'\n", "f", {"X": "1", "Y": "2"})[0]
    assert document.value == {"a": "x1${X $ $X ${Y", "b": "${"}
    assert [finding.code for finding in document.report.findings({})] == ["W104"]


def test_a_variable_may_have_a_default_for_unset_and_empty() -> None:
    text = "a: ${X:-http://h:1/x}\nb: ${Y:-}\nc: ${Z:-no}\n"
    assert read(text, "f", {"Z": "set", "X": ""})[0].value == {"a": "http://h:1/x", "b": "", "c": "set"}


def test_a_missing_variable_is_named_where_it_is_used() -> None:
    finding = read("a: 1\nb:\n  c: x-${NOT_SET}\n", "f.yaml", {})[0].report.findings({})[0]
    assert str(finding) == "f.yaml:3:6: error E004 the environment variable NOT_SET is not set"
    assert "export NOT_SET=" in finding.hint


def test_a_bare_dollar_name_stays_and_warns_only_where_conduit_would_expand_it() -> None:
    text = "a: '{{ $x := .Key }}$HOME'\n"
    assert codes(text) == []
    assert codes(text, {"HOME": "/root"}) == ["W104"]
    assert read(text, "f", {"HOME": "/root"})[0].value == {"a": "{{ $x := .Key }}$HOME"}


def test_a_duplicate_key_names_both_places() -> None:
    finding = read("a: 1\nb: 2\na: 3\n", "f", {})[0].report.findings({})[0]
    assert (finding.code, finding.line, finding.column) == ("E003", 3, 1)
    assert "the first is in line 1, column 1" in finding.message


def test_merged_keys_give_way_to_written_ones() -> None:
    text = "x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: {b: 4, <<: [*x]}\n"
    value = read(text, "f", {})[0].value
    assert value["y"] == {"a": "1", "b": "3"}
    assert value["z"] == {"a": "1", "b": "4"}
    assert codes(text) == []


@pytest.mark.parametrize(
    "text", ["a: [1,", "a: b: c", "a: *none", "a: 'open", "\ta: 1", "a: \x00", "? [x]\n: 1", "a: {{ .Key }}", "<<: 1"]
)
def test_broken_yaml_is_an_error_with_a_place(text: str) -> None:
    findings = [f for d in read(text, "f", {}) for f in d.report.findings({})]
    assert {f.code for f in findings} == {"E002"}
    assert all(f.line == 1 and f.column >= 1 for f in findings)


@pytest.mark.parametrize(
    "text",
    ["%YAML 1.2\n---\na: [", "%YAML 9.9\n---\na: 1", "%YAML 1.x\n---\na: 1", "%TAG ! x\n---\na: [", "%X\n---\na: ["],
)
def test_broken_yaml_with_directives_is_an_error_with_a_place(text: str) -> None:
    (finding,) = [f for d in read(text, "f", {}) for f in d.report.findings({})]
    assert finding.code == "E002"
    assert finding.line >= 1


def test_documents_before_broken_yaml_are_there() -> None:
    documents = read("a: 1\n---\nb: [\n", "f", {})
    assert documents[0].value == {"a": "1"}
    assert documents[1].report.broken(())


def test_aliases_that_contain_themselves_or_explode_are_refused() -> None:
    assert codes("a: &a [*a]") == ["E002"]
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    assert codes(bomb) == ["E002"]


@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "files").rglob("*.y*ml")), ids=lambda path: path.name)
def test_both_libraries_read_a_file_alike(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text()
    first = read(text, "f", os.environ)

    def refuse(*_: object, **__: object) -> None:
        raise yaml.YAMLError

    monkeypatch.setattr(yaml, "compose_all", refuse)
    second = read(text, "f", os.environ)
    assert [(d.value, d.report) for d in first] == [(d.value, d.report) for d in second]
