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
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs one benchmark at its smallest size. A process runs all that are asked for, one after the other, and those
    behind one that fails are run by another. They share a folder, and with all tests the class-data archive, which here
    the jobs written by hand have, too: nobody asks how fast they are."""
    work = tmp_path_factory.mktemp("bench")
    # First of all, as what is said here to `spark-submit` would go into how drivers are started with it.
    cds.ensure(work)
    options, ours = quick_options()
    environment = {**os.environ, **ours, "SPARK_SUBMIT_OPTS": shlex.join(options)}
    here = [each for each in request.session.items if each.path.is_relative_to(Path(__file__).parent)]
    asked = [each for each in here if isinstance(each, pytest.Function) and "quick" in each.fixturenames]
    names: list[str] = [each.callspec.params["name"] for each in asked]
    results: dict[str, dict[str, Any]] = {}

    def run(name: str) -> dict[str, Any]:
        if name not in results:
            behind = names[names.index(name) :]
            command = [sys.executable, "-m", "benchmarks", "--quick", "--json", "--work", str(work), *behind]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1_500, check=False
            )
            # Servers that they start may speak, too.
            said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            results.update((found["name"], found) for found in said)
            log = work / "stderr.log"
            errors = done.stderr[-2000:] + (_told(log.read_text()) if log.exists() else "")
            assert name in results, errors
            assert done.returncode == 0 or not results.keys() >= {*behind}, errors
        return results[name]

    return run


def _told(log: str) -> str:
    """The end of what the drivers said, without Spark's own lines: those of its shutdown stand behind the error."""
    return "\n".join([line for line in log.splitlines() if " INFO " not in line][-40:])
