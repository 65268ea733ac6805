"""The real receiver of the demo, as a process that can be killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conduit_tasks.stack.ports import free_port


@dataclass
class ReceiverProcess:
    folder: Path
    options: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> ReceiverProcess:
        command = [sys.executable, "-m", "conduit_tasks.demo.receiver", "--port", str(self.port)]
        command += ["--db", str(self.folder / "receiver.db"), *self.options]
        with (self.folder / "receiver.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while True:
            try:
                self.summary()
                return self
            except OSError:
                assert self.process.poll() is None, (self.folder / "receiver.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}{path}", timeout=60) as answer:
            return bytes(answer.read())

    def summary(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/summary")))

    def accepted(self) -> list[str]:
        return self.get("/accepted").decode().split()

    def mode(self, mode: str) -> None:
        body = json.dumps({"mode": mode}).encode()
        request = urllib.request.Request(f"{self.url}/mode", data=body, method="PUT")
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200
