"""An interval of a topic again: by the messages' own time, whatever is committed, committing nothing (X3)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conduit_tasks.resend.replay import replay
from tests.connectors.kafka import Kafka
from tests.micro_batch.harness import payloads, run_until_quiet, write_pipeline

HOUR = 3_600_000
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: kafka, settings: {servers: "SERVERS", topics: "FROM", readFromBeginning: "true",
         timeout: 30s}, processors: [{id: d, plugin: json.decode, settings: {field: .Payload.After}}]}
"""


@pytest.mark.proves("X3", "B1")
def test_a_late_joiner_gets_the_messages_of_an_interval_that_it_missed(home: Path, kafka: Kafka) -> None:
    # Given a message an hour over two partitions, all delivered, and a destination that joined then
    topic, begin = kafka.topic(2), int(time.time() * 1000) - 30 * HOUR

    def put(first: int, last: int) -> None:
        for n in range(first, last):
            kafka.put(topic, [b'{"n": %d}' % n], n % 2, timestamp=begin + n * HOUR)

    def write(*names: str) -> None:
        text = PIPELINE.replace("SERVERS", kafka.servers).replace("FROM", topic)
        kind = "type: destination, plugin: file, settings: {format: payload, path: out"
        write_pipeline(home, "p", text + "".join(f"      - {{id: {n}, {kind}/{n}.jsonl}}}}\n" for n in names))

    def got(name: str) -> list[int]:
        return [row["n"] for row in payloads(home / "out" / f"{name}.jsonl")]

    put(0, 20)
    write("a")
    run_until_quiet("p")
    write("a", "late")
    put(20, 24)
    run_until_quiet("p")
    assert sorted(got("late")) == [20, 21, 22, 23]
    committed = [kafka.committed("conduit.p.in", topic, partition) for partition in range(2)]
    # And two that no run has read yet
    put(24, 26)

    # When the hours from the tenth on are replayed
    read: list[int] = []
    start, end = (datetime.fromtimestamp((begin + n * HOUR) / 1000, UTC).isoformat() for n in (10, 26))
    (outcome,) = replay(
        "p", start, end, ["late"], "missing", run="r", wait=120.0, progress=lambda m: read.append(m.counts["read"])
    )

    # Then it has what it missed of them, in the order of each partition, and nothing earlier was even read
    assert outcome.delivered == 10
    assert got("late")[4:] == [*range(10, 20, 2), *range(11, 20, 2)]
    assert read == [14]
    # And the group stands where it stood
    assert [kafka.committed("conduit.p.in", topic, partition) for partition in range(2)] == committed
    run_until_quiet("p")
    assert sorted(got("late")[14:]) == [24, 25]
