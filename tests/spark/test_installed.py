"""Which PySpark a Python process of Spark's takes: the installed one, or the one that its Spark brings."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conduit_tasks.spark.cds import spark_home

LOOK = """\
import sys
sys.path[:0] = sys.argv[1:]
from conduit_tasks.spark.installed import prefer_installed
prefer_installed()
import pyspark, py4j
print(pyspark.__file__, py4j.__file__)
"""


def found(*zips: Path) -> list[str]:
    """Where PySpark and Py4J come from, with these first on the path, as Spark puts them there."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *map(str, zips)], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.split()


@pytest.fixture
def zips() -> list[Path]:
    return sorted((spark_home() / "python" / "lib").glob("*.zip"))


def test_the_installed_pyspark_is_taken_as_it_is_compiled(zips: list[Path]) -> None:
    assert len(zips) == 2
    assert not [path for path in found(*zips) if ".zip" in path]


@pytest.mark.slow
def test_another_spark_keeps_its_own_pyspark(zips: list[Path], tmp_path: Path) -> None:
    # Given a Spark that is not the installed one
    folder = tmp_path / "spark" / "python" / "lib"
    folder.mkdir(parents=True)
    others = [Path(shutil.copy(path, folder)) for path in zips]
    # Then what goes with it is taken
    assert all(path.startswith(str(folder)) for path in found(*others))
