"""Benchmarks run in processes of their own: they wait for every child that they have, and pytest has others."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.spark import cds
from tests.jvm import quick_options

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs one benchmark at its smallest size; they share a folder, and with all tests the class-data archive, which
    here the jobs written by hand have, too: nobody asks how fast they are."""
    work = tmp_path_factory.mktemp("bench")
    # First of all, as what is said here to `spark-submit` would go into how drivers are started with it.
    cds.ensure(work)
    options, ours = quick_options()
    environment = {**os.environ, **ours, "SPARK_SUBMIT_OPTS": shlex.join(options)}

    def run(name: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "--work", str(work), name]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        log = work / "stderr.log"
        assert done.returncode == 0, done.stderr[-2000:] + (_told(log.read_text()) if log.exists() else "")
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result

    return run


def _told(log: str) -> str:
    """The end of what the drivers said, without Spark's own lines: those of its shutdown stand behind the error."""
    return "\n".join([line for line in log.splitlines() if " INFO " not in line][-40:])
