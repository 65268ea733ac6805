"""What is run: by `.ci/run` all that proves a promise; and everything if a worker of the tests dies, but for the test
at which it died, which fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
CONFTEST = "from tests.conftest import pytest_xdist_make_scheduler\n"
TESTS = """
import os
import pytest

@pytest.mark.parametrize("n", range({count}))
def test_{name}(n):
    if n == {dies_at}:
        os.kill(os.getpid(), 9)
"""
COUNT = 5


@pytest.mark.slow
def test_a_worker_that_dies_fails_its_test_and_the_others_are_run_to_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    # The second file of a worker: the first has ended
    for name, dies_at in {"a": -1, "b": -1, "c": 3, "d": COUNT - 1}.items():
        (tmp_path / f"test_{name}.py").write_text(TESTS.format(name=name, count=COUNT, dies_at=dies_at))
    report = tmp_path / "report.xml"
    options = ("-n", "2", "--no-loadscope-reorder", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", os.devnull)
    said = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", tmp_path, f"--junitxml={report}", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.returncode == 1, said.stderr
    cases = [(case.get("name"), len(case)) for case in ElementTree.parse(report).iter("testcase")]
    failed = {name for name, problems in cases if problems}
    assert failed == {"test_c[3]", f"test_d[{COUNT - 1}]"}
    assert len({name for name, _ in cases} - failed) == 4 * COUNT - 2


MARKED = """
import pytest

def test_quick(): ...

@pytest.mark.slow
def test_slow(): ...

@pytest.mark.proves("C1")
def test_promise(): ...

@pytest.mark.slow
@pytest.mark.proves("C1")
def test_slow_promise(): ...
"""


NAMES = {"test_quick", "test_slow", "test_promise", "test_slow_promise"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """`.ci/run` in a folder with the tests of MARKED, whose environment is there and whose `make check` passes."""
    for folder in (".ci", "scripts", ".venv/bin", "tests"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    targets = (ROOT / "Makefile").read_text().partition("check: env")[0]
    (tmp_path / "Makefile").write_text(f"{targets}check:\n\t@true\n")
    (tmp_path / "tests" / "test_marked.py").write_text(MARKED)
    programs = {
        "scripts/env.sh": "",
        ".venv/bin/pytest": f'exec {sys.executable} -m pytest "$@" -p no:cacheprovider --collect-only\n',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def ci(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Without what the `make` says by which these tests are run
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTEST_"))}
    command = [checkout / ".ci" / "run", *arguments]
    return subprocess.run(
        command, env={**environment, "WORKERS": "0"}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(("arguments", "left_out"), [((), {"test_slow"}), (("--all",), set())])
def test_a_change_is_tried_by_all_that_proves_a_promise(
    checkout: Path, arguments: tuple[str, ...], left_out: set[str]
) -> None:
    said = ci(checkout, *arguments)
    assert said.returncode == 0, said.stderr
    found = {name for name in NAMES if f"::{name}\n" in said.stdout}
    assert NAMES - found == left_out, said.stdout


def test_an_option_that_is_none_is_refused_before_anything_is_run(checkout: Path) -> None:
    said = ci(checkout, "--al")
    assert (said.returncode, said.stdout) == (2, "")
    assert "--all" in said.stderr
