"""One pipeline among many files: only the files that can hold it are parsed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline import load
from conduit_tasks.pipeline.lookup import can_hold
from conduit_tasks.pipeline.names import dag_id, names_of, resend_dag_id
from conduit_tasks.settings import settings

FILE = """\
version: "2.2"
pipelines:
  - id: {id}
    connectors:
      - {{id: in, type: source, plugin: generator}}
      - {{id: out, type: destination, plugin: log}}
"""


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("- id: orders\n", True),
        ("- id: orders # ours\n", True),
        ("- {id: orders, name: x}\n", True),
        ("- {name: x, id: orders}\n", True),
        ("- id: 'orders'\n", True),
        ('{"pipelines": [{"id": "orders"}]}', True),
        ('- "id"  :   "orders"\n', True),
        ("- id: orders2\n", False),
        ("- id: my-orders\n", False),
        ("- {valid: orders}\n", False),
        ("- name: orders\n", False),
        ("- id: ${TENANT}\n", True),
        ("- id: *shared\n", True),
        ("- id: !!str other\n", True),
        ("- id:\n    orders\n", True),
        ("- id: >-\n    other\n", True),
        ('- id: "\\x6frders"\n', True),
    ],
)
def test_a_file_is_read_if_it_names_the_id_or_one_that_only_parsing_tells(
    text: str, held: bool, tmp_path: Path
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert can_hold(file, lambda id: id == "orders") is held


def test_a_file_that_cannot_be_read_is_left_to_who_loads_it(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_bytes(b"\xff\xfe\xfd")
    assert can_hold(tmp_path / "file.yaml", lambda _: False)


@pytest.mark.parametrize("id", ["plain", "with:colon", "x" * 128])
def test_each_dag_of_a_pipeline_leads_to_it(id: str) -> None:
    for dag in (dag_id(id), resend_dag_id(id)):
        assert names_of(dag)(id)
        assert not names_of(dag)(f"{id[:-1]}-")


@pytest.fixture
def many(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fifty files with a pipeline each; gives the names of those that are parsed."""
    for n in range(50):
        (home / "include" / "pipelines" / f"{n:02}.yaml").write_text(FILE.format(id=f"p{n}"))
    parsed: list[str] = []
    real = load.read

    def read(text: str, file: str, env: object) -> object:
        parsed.append(Path(file).name)
        return real(text, file, env)  # type: ignore[arg-type]

    monkeypatch.setattr(load, "read", read)
    return parsed


def test_one_pipeline_among_many_files_is_found_by_parsing_one(many: list[str]) -> None:
    assert load.get_pipeline("p7").id == "p7"
    assert many == ["07.yaml"]


def test_an_id_that_is_used_twice_is_refused_as_in_the_whole_folder(many: list[str], home: Path) -> None:
    (home / "include" / "pipelines" / "twin.yaml").write_text(FILE.format(id="p7"))
    with pytest.raises(ConfigError, match="used twice"):
        load.get_pipeline("p7")


def test_an_id_that_does_not_exist_is_told_with_those_that_do(many: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"no pipeline 'p77'.*p49"):
        load.get_pipeline("p77")


def test_a_file_is_parsed_again_if_its_text_the_environment_or_the_settings_changed(
    many: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load.get_pipeline("p7")
    assert load.get_pipeline("p7").digest() == first.digest()
    assert many == ["07.yaml"]
    file = home / "include" / "pipelines" / "07.yaml"
    file.write_text(FILE.format(id="p7").replace("plugin: log", "plugin: file, settings: {path: '${PLACE}'}"))
    for place in ("a", "b"):
        monkeypatch.setenv("PLACE", place)
        assert load.get_pipeline("p7").destinations[0].settings == {"path": place}
    # As an executor has its driver's settings
    settings().model_copy(update={"retention": 77.0}).use()
    changed = load.get_pipeline("p7")
    assert changed.spool_retention == 77
    assert changed.digest() != first.digest()
    assert many == ["07.yaml"] * 4


def test_what_a_caller_changes_in_a_pipeline_is_seen_by_no_other(many: list[str]) -> None:
    held = load.get_pipeline("p7").destinations[0].settings
    held["level"] = "debug"  # type: ignore[index]
    assert "level" not in load.get_pipeline("p7").destinations[0].settings
    assert many == ["07.yaml"]
