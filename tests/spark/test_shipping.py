"""What executors are sent of `include`: its Python, importable without its folders being packages, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conduit_tasks.spark.shipping import zipped


def test_the_zip_holds_the_python_of_include_and_can_be_imported(tmp_path: Path) -> None:
    # Given code in folders without __init__.py, beside data and caches
    deep = tmp_path / "include" / "own" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "include" / "handlers.py").write_text("from include.own.deep.words import WORD\n")
    (deep / "words.py").write_text("WORD = 'hello'\n")
    (deep / "data.csv").write_text("a,b\n")
    (tmp_path / "elsewhere.py").write_text("")
    # When it is zipped, twice
    archive, again = zipped(tmp_path, tmp_path / "1.zip"), zipped(tmp_path, tmp_path / "2.zip")
    assert archive is not None
    assert again is not None
    assert archive.read_bytes() == again.read_bytes()
    # Then a Python that has nothing but the zip imports it
    code = (
        "import include.handlers, sys, zipfile; print(include.handlers.WORD, *zipfile.ZipFile(sys.argv[1]).namelist())"
    )
    environment = {"PYTHONPATH": str(archive)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive)], env=environment, cwd="/", capture_output=True, text=True, check=True
    )
    word, *names = done.stdout.split()
    assert word == "hello"
    assert [name for name in names if not name.endswith("/")] == ["include/handlers.py", "include/own/deep/words.py"]


def test_a_home_without_code_ships_nothing(tmp_path: Path) -> None:
    (tmp_path / "include" / "pipelines").mkdir(parents=True)
    assert zipped(tmp_path, tmp_path / "x.zip") is None
