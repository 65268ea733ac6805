"""The example package can be installed, is found through its entry points, and passes its own test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has the package, and this project's code."""
    folder = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(folder), str(EXAMPLE)], check=True, timeout=400)
    # What a run of ours was told, as a plugin of pytest, is not for its tests.
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.mark.slow
def test_its_own_test_passes_with_the_acceptance_suite(installed: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-c", str(EXAMPLE / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(EXAMPLE / "tests")],
        env=installed,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


@pytest.mark.slow
def test_it_is_listed_and_described_beside_our_own(installed: dict[str, str], tmp_path: Path) -> None:
    def conduit(*words: str) -> str:
        command = [sys.executable, "-m", "conduit_tasks.cli", *words]
        done = subprocess.run(
            command, env=installed, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "journal" in conduit("connectors", "list")
    assert "Appends records to a table of an SQLite file" in conduit("connectors", "describe", "journal")
    assert "number.round" in conduit("processors", "list")
    assert "✗" not in conduit("connectors", "test", "journal", "--set", f"path={tmp_path / 'j.db'}")
