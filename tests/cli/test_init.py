"""`conduit init`: what it writes is right, and what exists stays."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from tests.cli.conftest import Conduit


def test_the_starter_project_is_valid_and_can_be_explained(conduit: Conduit, folder: Path) -> None:
    assert conduit("init").exit_code == 0
    done = conduit("validate")
    assert (done.exit_code, done.stdout) == (0, "")
    assert conduit("explain", "example").exit_code == 0
    assert conduit("pipelines", "test", "include/pipelines/example.yaml").exit_code == 0
    assert "PipelineKeys" in json.loads((folder / "include" / "pipeline.schema.json").read_text())["$defs"]


@pytest.mark.parametrize(
    ("old", "new", "code", "said"),
    [
        (
            ".Payload.After.amount 100",
            ".Payload.After.amuont 100",
            0,
            ["26:13: warning W206", "'.Payload.After.amuont'", "'amount'"],
        ),
        (
            "# delivery: {order-by: key, retry: 5",
            "delivery: {order-by: key, retry: many",
            1,
            ["40:35: error E103", "'many'"],
        ),
    ],
)
def test_validate_names_the_place_of_the_mistakes_that_the_tutorial_makes(
    conduit: Conduit, folder: Path, old: str, new: str, code: int, said: list[str]
) -> None:
    tutorial = " ".join((Path(__file__).parents[2] / "docs/tutorial.md").read_text().split())
    assert "write `amuont` for `amount` in the condition" in tutorial
    assert "or `retry: many` in the line with `delivery`" in tutorial
    conduit("init")
    file = folder / "include" / "pipelines" / "example.yaml"
    file.write_text(file.read_text().replace(old, new))
    done = conduit("validate")
    assert done.exit_code == code
    for words in said:
        assert words in done.stdout


def test_the_dag_files_are_found_by_airflow(conduit: Conduit, folder: Path) -> None:
    conduit("init", "new")
    for file in (folder / "new" / "dags").iterdir():
        text = file.read_text()
        ast.parse(text)
        # Airflow skips files without both words (safe mode).
        assert "dag" in text.lower()
        assert "airflow" in text.lower()


def test_nothing_that_exists_is_changed(conduit: Conduit, folder: Path) -> None:
    mine = folder / "include" / "pipelines" / "example.yaml"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")

    first, second = conduit("init"), conduit("init")

    assert mine.read_text() == "mine"
    assert "kept  include/pipelines/example.yaml" in first.stdout
    assert "wrote" in first.stdout
    assert "wrote" not in second.stdout


def test_a_file_in_the_way_is_an_error_that_names_it(conduit: Conduit, folder: Path) -> None:
    (folder / "include").write_text("a file")
    error = conduit("init").exception
    assert isinstance(error, ConfigError)
    assert "include/pipelines/example.yaml cannot be written" in str(error)
