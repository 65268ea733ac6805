"""Which Python `make env` makes `.venv` by, and when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "env.sh"
SYSTEM = "/usr/bin/python3"
PRETENDS = """
import sys, sysconfig
if sys.executable != {system!r}:
    asked = sysconfig.get_config_var
    sysconfig.get_config_var = lambda name: {built!r} if name == "CONFIG_ARGS" else asked(name)
    sys.version_info = (*{version!r}, *sys.version_info[2:])
"""


def chosen(folder: Path, built: str | None, version: tuple[int, int]) -> str:
    """What is taken in place of this Python, if that had been built in this way, and were of this version."""
    (folder / "sitecustomize.py").write_text(PRETENDS.format(system=SYSTEM, built=built, version=version))
    text = SCRIPT.read_text()
    function = "quicker() {" + text.partition("quicker() {")[2].partition("\n}\n")[0] + "\n}\n"
    said = subprocess.run(
        ["bash", "-c", f'{function}\nquicker "$1"', "bash", sys.executable],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.strip()


@pytest.mark.parametrize("built", ["'--enable-shared'", None])
def test_one_that_was_built_without_optimizations_gives_way_to_the_systems_of_its_version(
    built: str | None, tmp_path: Path
) -> None:
    asks = [SYSTEM, "-c", "import ensurepip, sys, venv; print(*sys.version_info[:2])"]
    found = [int(n) for n in subprocess.run(asks, capture_output=True, text=True, check=False).stdout.split()]
    # Where the system has none that makes environments, there is no other
    version = (found[0], found[1]) if found else sys.version_info[:2]
    assert chosen(tmp_path, built, version) == (SYSTEM if found else sys.executable)


def test_one_that_was_built_with_optimizations_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path, "'--enable-optimizations' '--with-lto'", sys.version_info[:2]) == sys.executable


def test_one_of_another_version_than_the_systems_is_taken(tmp_path: Path) -> None:
    assert chosen(tmp_path, "", (3, 99)) == sys.executable


def test_an_environment_that_was_left_without_pip_is_made_again(tmp_path: Path) -> None:
    # Given a Python that makes environments, and what one without ensurepip has left
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho made >> made\nmkdir -p .venv/bin && touch .venv/bin/python .venv/bin/pip\n")
    python.chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    begin = "if [ ! -x .venv/bin/python ]"
    block = begin + SCRIPT.read_text().partition(begin)[2].partition("\nfi\n")[0] + "\nfi\n"
    # When it is called twice
    given = {**os.environ, "PYTHON": "given"}
    for _ in range(2):
        subprocess.run(["bash", "-euc", f"python={python}\n{block}"], cwd=tmp_path, env=given, check=True)
    # Then it is made once
    assert (tmp_path / "made").read_text() == "made\n"
