"""What a destination says when it does not answer may quote our own secrets: none is kept, of outage or breaker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from tests.answering import answering
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

    def no_capacity(what: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        return 503, f"no capacity for {headers['X-Api-Key']}".encode()

    with answering(no_capacity) as url:
        yield url


def test_no_secret_of_a_destination_is_kept_with_its_outage_or_breaker(home: Path, telltale: str) -> None:
    write_pipeline(home, "p", PIPELINE.format(url=telltale, secret=SECRET))
    events(home / "data", 5)
    run_once("p", "first")
    with closing(state("p")) as broker:
        kept = broker.access.redis.hgetall(broker.keys.destination("web"))
    assert "no capacity for ***" in kept["outage"]  # type: ignore[index]
    assert "no capacity for ***" in kept["breaker"]  # type: ignore[index]
    assert SECRET not in str(kept)
