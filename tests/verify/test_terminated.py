"""`conduit verify` that is told to end leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIVE = """
import sys, tempfile
from conduit_tasks.verify import server
server.scratch = lambda: server.Path(tempfile.mkdtemp(prefix="v", dir=sys.argv[1]))
from conduit_tasks.cli.main import app
if __name__ == "__main__":
    app(sys.argv[2:])
"""


@pytest.mark.parametrize(
    "how", [["--seeds", "500", "--jobs", "1"], ["--seeds", "500", "--jobs", "2"], ["--processes", "9"]]
)
def test_a_terminated_verify_stops_its_redis_and_removes_its_folders(tmp_path: Path, how: list[str]) -> None:
    program, folder = tmp_path / "live.py", Path(os.path.realpath(tmp_path)) / "s"
    program.write_text(LIVE)
    folder.mkdir()
    # Given one at work
    process = subprocess.Popen(
        [sys.executable, str(program), str(folder), "verify", *how],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        while len(list(folder.glob("v*/redis.sock"))) < (2 if how[-1] == "2" else 1):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.05)
        # When it is told to end
        process.send_signal(signal.SIGTERM)
        # Then it does so, with its folders gone, and no server in them
        assert process.wait(120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
    assert list(folder.iterdir()) == []
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(folder).encode() in _bytes(p)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
