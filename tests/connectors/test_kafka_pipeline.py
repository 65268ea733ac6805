"""Pipelines from Kafka over processes that die at any operation, outages and deadly records (SEMANTICS B1–B8)."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.acks import Acks
from conduit_tasks.broker.deliveries import Deliveries
from conduit_tasks.broker.micro_batches import MicroBatches
from conduit_tasks.connectors.kafka.destination import KafkaDestination
from conduit_tasks.connectors.kafka.source import KafkaSource
from conduit_tasks.delivery.isolated import ChildDied, in_child
from conduit_tasks.errors import Unavailable
from tests.connectors.kafka import Kafka
from tests.micro_batch.endings import end_at, lapse
from tests.micro_batch.harness import payloads, run_once, run_until_quiet, state, write_pipeline

RECORDS = 90
GROUP = "conduit.p.in"
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    dead-letter-queue: {window-size: 0}
    connectors:
      - id: in
        type: source
        plugin: kafka
        settings: {servers: "SERVERS", topics: "FROM", readFromBeginning: "true", timeout: 30s}
        processors: []  # sources.in
      - id: out
        type: destination
        DESTINATION
"""
TO_KAFKA = (
    'plugin: kafka, settings: {servers: "SERVERS", topic: "TO", format: payload, chunk: "7", deliveryTimeout: 10s, '
    "timeout: 30s, id-header: id}, delivery: {timeout: 200ms, max-redeliveries: 100, guarantee: GUARANTEE}"
)
TO_FILE = (
    "plugin: file, settings: {path: out/file.jsonl, format: payload}, delivery: {timeout: 1s, max-redeliveries: 3}"
)
DECODE = "{id: decode, plugin: json.decode, settings: {field: .Payload.After}}"
DEADLY = '{id: deadly, plugin: python, settings: {call: "tests.faults.functions:deadly"}}'


def given(home: Path, kafka: Kafka, destination: str, *, partitions: int = 2, **names: str) -> tuple[str, str]:
    """The pipeline, and 90 records {"n": …} by key over the partitions of a topic; both topics."""
    origin, target = kafka.topic(partitions), kafka.topic(partitions)
    text = PIPELINE.replace("\n        DESTINATION", "".join(f"\n        {p}" for p in _keys(destination)))
    for name, value in {"SERVERS": kafka.servers, "FROM": origin, "TO": target, **names}.items():
        text = text.replace(name, value)
    write_pipeline(home, "p", text)
    producer = kafka.producer()
    for n in range(RECORDS):
        producer.produce(origin, json.dumps({"n": n}).encode(), key=f"k{n % 7}".encode())
    assert producer.flush(120) == 0
    return origin, target


def _keys(flow: str) -> list[str]:
    """`a: b, c: {…}` as lines of a block."""
    out, depth, start = [], 0, 0
    for at, letter in enumerate(flow + ","):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            out.append(flow[start:at].strip())
            start = at + 1
    return out


def arrived(kafka: Kafka, topic: str) -> dict[bytes, list[int]]:
    """Key → what came, in order."""
    found: dict[bytes, list[int]] = {}
    for message in kafka.messages(topic):
        found.setdefault(message.key() or b"", []).append(json.loads(message.value() or b"")["n"])
    return found


EACH_ONCE = {f"k{k}".encode(): [n for n in range(RECORDS) if n % 7 == k] for k in range(7)}


def settled(kafka: Kafka, origin: str) -> None:
    """Everything is acked, and lag tools see no lag (B1)."""
    broker = state("p")
    position = broker.positions.planned("in")
    assert broker.positions.acked("in") == position
    broker.close()
    ends = {f"{origin}:{n}": kafka.committed(GROUP, origin, n) for n in range(2)}
    assert ends == position
    assert sum(n or 0 for n in ends.values()) == RECORDS


@pytest.mark.proves("B1", "B2", "B3")
def test_a_micro_batch_carries_its_offsets_and_its_status_and_offsets_are_committed_when_it_is_delivered(
    home: Path, kafka: Kafka
) -> None:
    origin, target = given(home, kafka, TO_KAFKA, GUARANTEE="at-least-once")
    broker = state("p")
    # When one micro-batch is read and sealed, and not delivered
    from conduit_tasks.micro_batch.acks import ack_source
    from conduit_tasks.micro_batch.context import opened
    from conduit_tasks.micro_batch.plan import plan_run
    from conduit_tasks.micro_batch.read import read_source
    from tests.micro_batch.harness import here

    plan_run("p", "r")
    assert broker.micro_batches.get(1).state == "open"
    with opened("p", "r") as context:
        read_source(context, "in", here, 5.0)
    # Then it carries offsets per partition, and the sealed manifest beside the data does
    first = broker.micro_batches.get(1)
    assert first.state == "sealed"
    assert {(s.part, s.start, s.end) for s in first.slices["in"]} == {
        (f"{origin}:{n}", 0, end) for n, end in ((int(p[-1]), e) for p, e in broker.positions.planned("in").items())
    }
    # And no other is read while it is in flight, and nothing is committed
    assert "nothing new" in plan_run("p", "again").reason or broker.micro_batches.latest_sealed() == 1
    ack_source("p", "in", "r")
    assert [kafka.committed(GROUP, origin, n) for n in range(2)] == [None, None]
    # When it is delivered, its offsets are committed, and only those
    run_once("p")
    assert {f"{origin}:{n}": kafka.committed(GROUP, origin, n) for n in range(2)} == {
        s.part: s.end for s in first.slices["in"]
    }
    assert broker.deliveries.get("out").cursor == 1
    run_until_quiet("p")
    assert arrived(kafka, target) == EACH_ONCE
    settled(kafka, origin)
    broker.close()


@pytest.mark.proves("B1", "B5", "B8", "C10", "C12")
@pytest.mark.parametrize(("guarantee", "seed"), [("at-least-once", 1), ("effectively-once", 2)])
def test_from_topic_to_topic_nothing_is_lost_whenever_the_process_dies(
    home: Path, kafka: Kafka, guarantee: str, seed: int
) -> None:
    # Given processes that die at a random operation, before or after it, and then one that does not
    origin, target = given(home, kafka, TO_KAFKA, GUARANTEE=guarantee)
    chance, deaths = random.Random(seed), 0
    for attempt in range(6):
        try:
            in_child(_run, f"run-{attempt}", chance.randint(1, 14), chance.random() < 0.5)
        except ChildDied:
            deaths += 1
            lapse()
    assert deaths >= 3, "too few deaths to show anything"
    run_until_quiet("p")
    # Then each record is there, effectively-once exactly once, and in the order of its partition
    found = arrived(kafka, target)
    if guarantee == "effectively-once":
        assert found == EACH_ONCE
    else:
        assert {k: list(dict.fromkeys(v)) for k, v in found.items()} == EACH_ONCE
    settled(kafka, origin)


def _run(run: str, die_at: int, after: bool) -> None:
    """`die_at`: the operation of this run that ends the process."""
    operations = {
        MicroBatches: ("open", "stage", "seal"),
        Deliveries: ("confirm",),
        Acks: ("begin", "commit"),
        KafkaDestination: ("open", "write"),
        KafkaSource: ("plan", "ack"),
    }
    of_all = [(owner, name) for owner, names in operations.items() for name in names]
    end_at(of_all, die_at, lambda: os._exit(9), after=after)
    run_once("p", run)


@pytest.mark.proves("B5")
def test_an_outage_of_the_destination_moves_no_offset_and_it_goes_on_from_the_cursor(
    home: Path, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a destination that fails after its second chunk of seven
    origin, target = given(home, kafka, TO_KAFKA, GUARANTEE="at-least-once")
    write, writes = KafkaDestination.write, 0

    def failing(self: KafkaDestination, rows: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes > 2:
            raise Unavailable("no broker")
        return write(self, rows)

    monkeypatch.setattr(KafkaDestination, "write", failing)
    said = run_once("p")
    assert isinstance(said["destinations.out"], Unavailable)
    broker = state("p")
    assert broker.deliveries.get("out").confirmed.count == 14
    assert kafka.committed(GROUP, origin) is None
    # When it is back
    monkeypatch.setattr(KafkaDestination, "write", write)
    broker.failures.recovered("destinations.out")
    run_until_quiet("p")
    # Then it went on behind the record that went well last, and nothing came twice
    assert arrived(kafka, target) == EACH_ONCE
    settled(kafka, origin)
    broker.close()


@pytest.mark.proves("B7", "C10")
def test_a_message_that_kills_its_worker_is_found_and_dead_lettered_and_its_offset_committed(
    home: Path, kafka: Kafka
) -> None:
    # Given a topic with a deadly message among others
    from tests.faults.parts import dead_letters

    origin, _ = given(home, kafka, TO_FILE, partitions=1)
    file = home / "include" / "pipelines" / "p.yaml"
    file.write_text(file.read_text().replace("[]  # sources.in", f"[{DECODE}, {DEADLY}]"))
    kafka.put(origin, [b'{"n": 90, "deadly": true}', b'{"n": 91}'])
    # When runs die of it
    deaths = 0
    for n in range(6):
        try:
            in_child(run_once, "p", f"run-{n}")
        except ChildDied:
            deaths += 1
            lapse()
    # Then three attempts died, and the next one found it by itself
    assert deaths == 3
    run_until_quiet("p")
    assert [p["n"] for p in payloads(home / "out/file.jsonl")] == [*range(90), 91]
    (letter,) = dead_letters()
    assert (letter["error_class"], letter["node"]) == ("killed its worker", "sources.in")
    assert kafka.committed(GROUP, origin) == 92


@pytest.mark.proves("B7")
def test_a_message_that_is_no_json_is_nacked_alone(home: Path, kafka: Kafka) -> None:
    from tests.faults.parts import dead_letters

    origin, _ = given(home, kafka, TO_FILE, partitions=1)
    file = home / "include" / "pipelines" / "p.yaml"
    file.write_text(file.read_text().replace("[]  # sources.in", f"[{DECODE}]"))
    kafka.put(origin, [b'{"n": ', b"\xff\x00", b'{"n": 92}'])
    run_until_quiet("p")
    assert [p["n"] for p in payloads(home / "out/file.jsonl")] == [*range(90), 92]
    assert [letter["record"]["position"] for letter in dead_letters()] != []
    assert len(dead_letters()) == 2
    assert kafka.committed(GROUP, origin) == 93
