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


@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [((), {"test_slow"}), (("--all",), set())],
)
def test_a_change_is_tried_by_all_that_proves_a_promise(
    tmp_path: Path, arguments: tuple[str, ...], left_out: set[str]
) -> None:
    # Given the scripts in a folder of their own, whose environment is there and whose `make check` passes
    (tmp_path / ".ci").mkdir()
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    text = (ROOT / "Makefile").read_text()
    (tmp_path / "Makefile").write_text(text.partition("check: env")[0] + "check:\n\t@true\n")
    (tmp_path / "scripts" / "env.sh").write_text("#!/bin/sh\n")
    (tmp_path / "scripts" / "env.sh").chmod(0o755)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "pytest").write_text(f'#!/bin/sh\nexec {sys.executable} -m pytest "$@" --collect-only\n')
    (programs / "pytest").chmod(0o755)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (tmp_path / "conftest.py").write_text("def pytest_addoption(parser): ...\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_marked.py").write_text(MARKED)
    environment = {**os.environ, "WORKERS": "0", "PYTEST_ADDOPTS": "-p no:cacheprovider"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    # When a change is tried
    said = subprocess.run(
        [tmp_path / ".ci" / "run", *arguments], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    # Then nothing is left out but what is slow and proves nothing
    found = {
        name
        for name in ("test_quick", "test_slow", "test_promise", "test_slow_promise")
        if f"::{name}\n" in said.stdout
    }
    assert {"test_quick", "test_slow", "test_promise", "test_slow_promise"} - found == left_out, (
        said.stdout + said.stderr
    )
