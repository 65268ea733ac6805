"""Ids of pipelines over a folder of files: used twice, named by a broken file, looked for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline.load import get_pipeline, load_file, load_folder
from conduit_tasks.settings import settings
from tests.pipeline.conftest import Files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """The settings' folder of pipelines, empty."""
    folder = tmp_path / "home" / "include" / "pipelines"
    folder.mkdir(parents=True)
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path / "home"))
    settings.cache_clear()
    yield Files(folder)
    settings.cache_clear()


@pytest.mark.proves("F3")
def test_pipelines_of_the_same_id_in_two_files_are_both_refused(project: Files) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    project.write(project.with_pipeline(), "b.yml")
    project.write(project.with_pipeline().replace("id: p", "id: q"), "c.yaml")
    project.write("not: read", "notes.txt")

    result = load_folder(project.folder)

    assert [p.id for p in result.pipelines] == ["q"]
    assert [(os.path.basename(f.file), f.line, f.code) for f in result.errors] == [
        ("a.yaml", 3, "E105"),
        ("b.yml", 3, "E105"),
    ]
    assert "b.yml:3" in result.errors[0].message


@pytest.mark.proves("F3")
@pytest.mark.parametrize(("old", "new"), [("type: source", "type: sauce"), ("path: in.txt", 'path: "${NOWHERE}"')])
def test_an_id_used_twice_is_refused_in_both_copies_also_where_one_is_broken(
    project: Files, old: str, new: str
) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    project.write(project.with_pipeline().replace(old, new), "b.yaml")
    result = load_folder(project.folder, env={})
    assert result.pipelines == []
    clashes = [(os.path.basename(f.file), f.line) for f in result.errors if f.code == "E105"]
    assert clashes == [("a.yaml", 3), ("b.yaml", 3)]


BREAKS = {
    "left open": "{whole}  bad: [unclosed\n",
    "indented wrongly": "{whole}   bad: x\n",
    "a tab": "{whole}\tbad: x\n",
    "a template that is not quoted": "{whole}    description: {{{{ .Key }}}}\n",
    "an alias of nothing": "{whole}    description: *none\n",
    "an alias of itself": "{whole}    description: &a [*a]\n",
    "a character that no text has": "{whole}    description: \x00\n",
    "nested too deep": "{whole}    description: " + "[" * 100 + "]" * 100 + "\n",
    "too long": "{whole}#" + "x" * (4 << 20) + "\n",
    "not UTF-8": "{whole}    description: \udcff\n",
    "an id by an alias": "x: &n p\npipelines:\n  - id: *n # id: p\n    x: [\n",
    "an id of a variable": "{of_variable}  bad: [unclosed\n",
    "a map that is open": "version: '2.2'\npipelines: [{{name: x, id: p, connectors: [",
    "behind a whole document": "a: b\n--- # good\n{whole}  bad: [unclosed\n",
    "in what YAML 1.2 alone knows": "%YAML 1.2\n---\n{whole}  bad: [unclosed\n",
}


@pytest.mark.proves("F3")
@pytest.mark.parametrize("case", BREAKS)
def test_an_id_that_a_file_names_before_it_breaks_is_used(project: Files, case: str) -> None:
    # Given a sound pipeline, and a file with another one of that id which is no YAML to its end
    project.write(project.with_pipeline(), "a.yaml")
    project.write(project.with_pipeline().replace("id: p", "id: q"), "c.yaml")
    other = BREAKS[case].format(
        whole=project.with_pipeline(), of_variable=project.with_pipeline().replace("id: p", "id: ${ID}")
    )
    (project.folder / "b.yaml").write_bytes(other.encode(errors="surrogateescape"))
    # When all are loaded
    result = load_folder(project.folder, env={"ID": "p"})
    # Then neither is there, both are named, and what has nothing to do with it stays
    assert [p.id for p in result.pipelines] == ["q"]
    clashes = {os.path.basename(f.file): f for f in result.errors if f.code == "E105"}
    assert sorted(clashes) == ["a.yaml", "b.yaml"]
    assert f"b.yaml:{clashes['b.yaml'].line}" in clashes["a.yaml"].message
    assert "a.yaml:3" in clashes["b.yaml"].message
    line = other.splitlines()[clashes["b.yaml"].line - 1]
    assert "id: p" in line or "id: ${ID}" in line


@pytest.mark.parametrize(
    "text",
    [
        "x: [unclosed\npipelines:\n  - id: p\n",  # behind the break
        "pipelines:\n  - id: q\n    connectors:\n      - id: p\n    x: [\n",
        "pipelines:\n  - id: q\n    settings: {id: p}\n    x: [\n",
        "pipelines:\n  p:\n    id: p\n    x: [\n",
        "other:\n  - id: p\n    x: [\n",
        "pipelines:\n  - ? {id: p}\n    : p\n    x: [\n",
        "pipelines:\n  - - id: p\n    - [\n",
        "pipelines:\n  - id: [p]\n    x: [\n",
        "pipelines:\n  - id: *p\n    x: [\n",
        "pipelines:\n  - id:\n    x: [\n",
        "x: \x00pipelines",
        "",
    ],
)
def test_what_is_no_id_of_a_pipeline_in_a_broken_file_keeps_nobody_out(project: Files, text: str) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    project.write(text, "b.yaml")
    result = load_folder(project.folder, env={})
    assert [p.id for p in result.pipelines] == ["p"]
    assert "E105" not in {f.code for f in result.errors}


def test_what_stands_before_a_break_is_declared_once(project: Files) -> None:
    # Given a file with a whole document, and one that breaks behind two pipelines
    text = project.with_pipeline() + "---\n" + project.with_pipeline().replace("id: p", "id: q")
    text += "  - id: r\n    x: [\n"
    result = load_file(project.write(text), env={})
    assert [(d.id, d.line) for d in result.declared] == [("p", 3), ("q", 16), ("r", 26)]
    assert [f.code for f in result.errors] == ["E002"]
    assert [p.id for p in result.pipelines] == ["p"]


def test_a_sound_file_is_parsed_once(project: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given that nobody may look for what stands before a break
    def looked(*_: object) -> None:
        raise AssertionError("a sound file was looked at twice")

    monkeypatch.setattr("conduit_tasks.pipeline.yaml.ids_before_break", looked)
    # Then sound files are loaded, broken pipelines among them
    project.write(project.with_pipeline(), "a.yaml")
    project.write(project.with_pipeline().replace("type: source", "type: sauce"), "b.yaml")
    assert len(load_folder(project.folder, env={}).declared) == 2


@pytest.mark.proves("F4")
def test_the_end_of_a_files_name_is_read_in_any_case(project: Files) -> None:
    project.write(project.with_pipeline(), "A.YML")
    project.write(project.with_pipeline().replace("id: p", "id: q"), "b.Yaml")
    project.write("not: a pipeline", "b.TEST.yaml")
    result = load_folder(project.folder)
    assert [p.id for p in result.pipelines] == ["p", "q"]
    assert result.findings == []


def test_a_pipeline_that_would_take_the_name_of_a_resend_dag_is_refused(project: Files) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    project.write(project.with_pipeline().replace("id: p", "id: p.resend"), "b.yaml")
    result = load_folder(project.folder)
    assert [p.id for p in result.pipelines] == ["p"]
    assert [f.code for f in result.errors] == ["E106"]


def test_a_pipeline_is_found_by_its_id(project: Files) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    assert get_pipeline("p").id == "p"


def test_an_id_that_is_not_there_raises_with_those_that_are(project: Files) -> None:
    project.write(project.with_pipeline(), "a.yaml")
    with pytest.raises(ConfigError, match=r"no pipeline 'x' in .*; there are: p$"):
        get_pipeline("x")


def test_an_id_whose_pipeline_is_broken_raises_its_first_error(project: Files) -> None:
    project.write(project.with_pipeline("statos: running"), "a.yaml")
    with pytest.raises(ConfigError, match=r"a\.yaml:13:5: error E101 unknown key 'statos'.*did you mean 'status'"):
        get_pipeline("p")
