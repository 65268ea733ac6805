"""Airflow's command in a process of the stack."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conduit_tasks.stack import component
from conduit_tasks.stack.up import AIRFLOW

SEEN = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0], gc.isenabled()))
"""


@pytest.mark.slow
def test_it_is_airflows_own_and_collects_garbage_seldom(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SEEN)

    environment = {"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*AIRFLOW, "providers", "nothing"], env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    # What it says of wrong arguments, and its exit code, are Airflow's
    assert done.returncode == 2
    assert "airflow providers [-h] COMMAND" in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{component.IMPORTED} True"
