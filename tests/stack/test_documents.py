"""The commands of the tutorial and of the README, as they stand there, on the real stack; and what the text says of
them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.stack.conftest import CONDUIT, PATIENCE, Stack, until
from tests.test_docs import ROOT, fences

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200), pytest.mark.xdist_group("stack")]

REFUSED = "EV"
"""The carrier whose flights the receiver refuses."""


def blocks(document: str) -> list[str]:
    return [fence.body for fence in fences(ROOT / document) if fence.language == "sh"]


def shell(stack: Stack, commands: str) -> str:
    """Runs the lines of a block in the stack's home, as a reader's shell would; returns all they said."""
    path = f"{Path(CONDUIT).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**stack.environment, "PATH": path},
        cwd=stack.home,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE,
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def lines(path: Path) -> list[Any]:
    """Those that are there whole: somebody may be writing the last one."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.slow
def test_the_tutorial_works_as_it_is_written(stack: Stack) -> None:
    begin, look, run, more, letters, end = blocks("docs/tutorial.md")
    with stack.lent("example"):
        # Given the reader's new folder (here the home of the stack that is shared)
        said = begin.splitlines()
        assert said[:2] == ['export PATH="$PWD/.venv/bin:$PATH"', "mkdir ../orders && cd ../orders"]
        shell(stack, "\n".join(said[2:]))
        # When the file is looked at
        said = shell(stack, look)
        assert "at-least-once" in said
        assert "passed" in said
        # And run, which happens by itself every 30 seconds, too
        with stack.api() as api:
            until(lambda: api.dag("example"))
        shell(stack, run)
        orders, large = stack.home / "out" / "orders.jsonl", stack.home / "out" / "large-orders.jsonl"
        until(lambda: (len(lines(orders)), len(lines(large))) == (5, 3))
        # When two more come, one of them wrong
        shell(stack, more)
        until(lambda: (len(lines(orders)), len(lines(large))) == (6, 4))
        # Then that one is a dead letter, which is found by its id
        listed = ("dead-letters", "list", "example", "--format", "json")
        until(lambda: json.loads(stack.conduit(*listed)))
        [letter] = json.loads(stack.conduit(*listed))
        assert "example ID" in letters
        said = shell(stack, letters.replace("ID", letter["id"]))
        assert "amount" in said
        # And the ledger has it all; that `conduit stack down` drains is tried in test_stack
        *ledger, down = end.splitlines()
        assert down == "conduit stack down"
        said = shell(stack, "\n".join(ledger))
        assert "large-ones" in said


@pytest.fixture
def refusing() -> Iterator[str]:
    """The address of a service that takes flights, but for those of one carrier."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(400 if f'"{REFUSED}"'.encode() in body else 204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/delays"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.slow
def test_the_commands_of_the_readme_work_on_the_flights(stack: Stack, refusing: str) -> None:
    [commands] = [block for block in blocks("README.md") if "conduit init" in block]
    # Given the demo's pipeline, with a part of its flights and a service of the test's
    data = stack.home / "include" / "data" / "flights"
    shutil.copytree(ROOT / "tests" / "data" / "flights-extract", data)
    text = (ROOT / "include" / "pipelines" / "flights.yaml").read_text()
    text = text.replace("${DELAYS_URL:-http://127.0.0.1:9000/delays}", refusing)
    side = stack.home / "flights.side"
    side.write_text(text)
    (stack.home / "changed.yaml").write_text(text.replace("*/15 * * * *", "@hourly"))
    with stack.lent("flights"):
        side.rename(stack.home / "include" / "pipelines" / "flights.yaml")
        with stack.api() as api:
            until(lambda: api.dag("flights"))
        # When each command is called in turn
        said = {}
        for command, _, comment in (line.partition("  ") for line in commands.splitlines()):
            said[command] = shell(stack, command)
            if "`conduit start flights` goes on" in comment:
                shell(stack, "conduit start flights")
        # Then the flights are where they belong, and what was refused can be seen
        assert "include/pipelines/example.yaml" in said["conduit init my-project"]
        count = sum(len(file.read_text().splitlines()) - 1 for file in data.iterdir())
        assert len(lines(stack.home / "out" / "archive.jsonl")) == count
        assert "archive" in said["conduit status flights"]
        assert "400" in said["conduit dead-letters list flights"]
        assert "stopped" in said["conduit stop flights"]
