"""A project folder, and commands run in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from conduit_tasks.cli.main import app
from conduit_tasks.settings import settings

Conduit = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty project folder; commands run there."""
    monkeypatch.setenv("CONDUIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def conduit(folder: Path) -> Conduit:
    """Runs `conduit …` in this process."""

    def run(*args: str | Path) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return run
