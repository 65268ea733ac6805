"""Settings of a Spark Connect server, secrets among them, reach it in a file that nobody else can read."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

from tests.connect_server import ConnectServer

SECRET = "spark.hadoop.fs.s3a.secret.key"
HUSH = "hush \\d=#1: ü"


SETTINGS = f"""
import json
from conduit_tasks.spark.connect import ConnectExecutors
import sys
executors = ConnectExecutors(sys.argv[1], "", "asks")
conf = executors.session().conf
print(json.dumps([conf.get("spark.a.b"), conf.get("{SECRET}")]))
executors.release()
"""


def settings(server: ConnectServer) -> list[str]:
    words = [sys.executable, "-c", SETTINGS, str(server.address)]
    done = subprocess.run(words, env={**os.environ, **server.environment}, capture_output=True, check=True, timeout=300)
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_settings_of_the_users_file_are_in_no_command_line(tmp_path: Path) -> None:
    # Given a secret among them
    (tmp_path / "include").mkdir()
    (tmp_path / "include/spark-defaults.conf").write_text(f"spark.a.b   two words\n{SECRET} {HUSH}\n")
    server = ConnectServer(tmp_path)
    # When a server is started, and another one in its place
    try:
        server.start()
        for starts_left in (1, 0):
            words = (first := server.jvm()).cmdline()
            # Then its processes' command lines have none of them
            assert server.process is not None
            for process in psutil.Process(server.process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # the first small job's end at any time
                    assert "hush" not in " ".join(process.cmdline())
            # And it has them, from a file that only we can read
            file = Path(words[words.index("--properties-file") + 1])
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert settings(server) == ["two words", HUSH]
            if starts_left:
                server.kill()
                first.wait(240)
                server.await_it()
    finally:
        server.stop()
    # And the file is gone with the server
    assert not file.exists()
