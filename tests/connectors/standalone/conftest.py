"""A home folder with standalone connectors in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.connectors.standalone.programs import built, started_by


@pytest.fixture(scope="session")
def in_go() -> Path:
    """The folder of the connectors in Go."""
    return built()


@pytest.fixture
def programs(home: Path, in_go: Path) -> Path:
    """The folder of the home's connectors: counter and books in Go, odd in Python."""
    folder = home / "connectors"
    folder.mkdir()
    for program in in_go.iterdir():
        shutil.copy2(program, folder / f"conduit-connector-{program.name}")
    started_by(folder, "odd")
    return folder
