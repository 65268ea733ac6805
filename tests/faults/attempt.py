"""One run, or runs until quiet, in a process of their own: `python -m tests.faults.attempt PIPELINE RUN [--quiet]
[--gate FILE]`; with a gate it says that it is ready by a file beside it, and begins once the gate is gone.

What kills this process kills no test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.faults.parts import ROOT, drive
from tests.micro_batch.harness import run_once


def attempt(run: str, *options: str, pipeline: str = "p") -> subprocess.Popen[str]:
    """Starts one; its standard output says what each node said."""
    command = [sys.executable, "-m", "tests.faults.attempt", pipeline, run, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


if __name__ == "__main__":
    pipeline, run, *options = sys.argv[1:]
    if "--gate" in options:
        gate = Path(options[options.index("--gate") + 1])
        gate.with_name(f"{gate.name}.{run}").touch()
        while gate.exists():
            time.sleep(0.005)
    print(drive(pipeline) if "--quiet" in options else run_once(pipeline, run))
