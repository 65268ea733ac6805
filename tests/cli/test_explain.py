"""`conduit explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conduit_tasks.errors import ConfigError
from tests.cli.conftest import Conduit
from tests.cli.test_validate import BAD, GOOD


@pytest.fixture
def project(folder: Path) -> Path:
    pipelines = folder / "include" / "pipelines"
    pipelines.mkdir(parents=True)
    (pipelines / "good.yaml").write_text(GOOD)
    return folder


@pytest.mark.proves("X8")
def test_a_pipeline_is_explained_by_its_id(conduit: Conduit, project: Path) -> None:
    done = conduit("explain", "good")
    assert done.exit_code == 0
    assert "pipeline → destinations.out" in done.stdout
    assert "not tolerated" in done.stdout


def test_a_file_is_explained_pipeline_by_pipeline(conduit: Conduit, project: Path) -> None:
    (project / "two.yaml").write_text(GOOD + "---\n" + GOOD.replace("good", "second"))
    answer = json.loads(conduit("explain", "two.yaml", "--format", "json").stdout)
    assert [about["pipeline"] for about in answer] == ["good", "second"]


def test_the_picture_is_mermaid(conduit: Conduit, project: Path) -> None:
    assert conduit("explain", "good", "--format", "mermaid").stdout.startswith("flowchart LR")


def test_a_broken_file_is_not_explained(conduit: Conduit, project: Path) -> None:
    (project / "bad.yaml").write_text(BAD)
    error = conduit("explain", "bad.yaml").exception
    assert isinstance(error, ConfigError)
    assert "bad.yaml:5:18: error E103" in str(error)
