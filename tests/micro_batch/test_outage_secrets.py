"""What a destination says when it does not answer may quote our own secrets: none is kept, of outage or breaker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.faults.parts import events
from tests.micro_batch.harness import run_once, state, write_pipeline

SECRET = "hush-hush-s3cr3t"
PIPELINE = """version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", settle: 0s}}}}
      - id: web
        type: destination
        plugin: http
        settings: {{url: "{url}", headers.X-Api-Key: {secret}}}
        delivery: {{timeout: 20s, breaker: {{failures: 1}}}}
"""


@pytest.fixture
def telltale() -> Iterator[str]:
    """The address of a server that is not there for us, and quotes our key."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            said = f"no capacity for {self.headers['X-Api-Key']}".encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_no_secret_of_a_destination_is_kept_with_its_outage_or_breaker(home: Path, telltale: str) -> None:
    write_pipeline(home, "p", PIPELINE.format(url=telltale, secret=SECRET))
    events(home / "data", 5)
    run_once("p", "first")
    with closing(state("p")) as broker:
        kept = broker.access.redis.hgetall(broker.keys.destination("web"))
    assert "no capacity for ***" in kept["outage"]  # type: ignore[index]
    assert "no capacity for ***" in kept["breaker"]  # type: ignore[index]
    assert SECRET not in str(kept)
