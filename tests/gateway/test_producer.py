"""The producer of `make stack`, against a real gateway that dies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from conduit_tasks.gateway.event import unpack
from conduit_tasks.trial.events import Producer
from tests.gateway.conftest import TOKEN, GatewayProcess, write_pipeline
from tests.waiting import until


def test_it_counts_an_event_only_when_the_gateway_took_it(
    gateway_home: Path, serving: Callable[..., GatewayProcess], stored: Callable[..., list[bytes]]
) -> None:
    # Given a producer at work, when the gateway is killed and comes back on the same port
    write_pipeline(gateway_home, auth="env:WEB_TOKEN")
    gateway = serving()
    port = gateway.address.rpartition(":")[2]
    producer = Producer(f"{gateway.url}/ingest/p/web", TOKEN)
    producer.start()
    until(lambda: len(producer.taken) >= 3)
    gateway.kill()
    until(lambda: producer.refused)
    before = len(producer.taken)
    again = serving("--port", port)
    until(lambda: len(producer.taken) >= before + 2)
    taken = producer.finish()
    # Then all that it counts is stored, in order, and what was refused was sent again under its id
    assert taken == list(range(1, len(taken) + 1))
    ids = [unpack(event)[1]["cloudevents.id"] for event in stored()]
    assert [int(id.rpartition("-")[2]) for id in dict.fromkeys(ids)] == taken
    assert again.stop() == 0
