"""Workers of the tests: one that dies fails the test at which it died, and everything else is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

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
