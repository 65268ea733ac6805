"""Airflow's command in a process of the stack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from conduit_tasks.stack import component
from conduit_tasks.stack.up import AIRFLOW

SEEN = """
import atexit, gc
atexit.register(lambda: print(gc.get_threshold()[0], gc.isenabled()))
"""


def test_it_is_airflows_own_and_collects_garbage_seldom(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SEEN)

    def said(*command: str) -> list[str]:
        done = subprocess.run(
            command,
            env={"AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        return [*done.stdout.split("\n"), str(done.returncode)]

    # What it says of wrong arguments, and its exit code, are Airflow's
    [*rest, seldom, _, code] = said(*AIRFLOW, "providers", "nothing")
    [*theirs, often, _, their_code] = said(sys.executable, "-m", "airflow", "providers", "nothing")
    assert (rest, code) == (theirs, their_code)
    assert (seldom, often) == (f"{component.IMPORTED} True", "700 True")
    assert their_code == "2"
