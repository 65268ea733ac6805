"""A pipeline that may have several micro-batches under way at its destination (ADR 41), for tests that break it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from tests.faults.beside import Beside
from tests.faults.functions import hold
from tests.faults.parts import Receiver
from tests.faults.test_shards import deliver
from tests.micro_batch.harness import here, state, write_pipeline
from tests.waiting import until

UNCONFIRMED = 8
PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: RECORDS}
    lag-budget: {records: 100000}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: to
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 2s, max-unconfirmed: 8, order-by: none, parallelism: 3}
"""
WAITS = '        processors: [{id: waits, plugin: python, settings: {call: "tests.faults.functions:waits"}}]\n'
"""Added to the pipeline: some records wait while there is the file `hold`."""


def pipeline(home: Path, url: str, *, records: int = 300, more: str = "") -> str:
    text = PIPELINE.replace("URL", url).replace("RECORDS", str(records)) + more
    write_pipeline(home, "p", text)
    return text


def changed(home: Path, old: str, new: str) -> None:
    text = (home / "include" / "pipelines" / "p.yaml").read_text()
    assert old in text
    write_pipeline(home, "p", text.replace(old, new))


def sealed(count: int, run: str = "run") -> None:
    """Reads so many micro-batches."""
    for _ in range(count):
        plan_run("p", run)
        with opened("p", run) as context:
            read_source(context, "in", here, 5.0)


@pytest.fixture
def broker(quick: Path) -> Iterator[Broker]:
    pipeline(quick, "http://127.0.0.1:1/")
    made = state("p")
    yield made
    made.close()


def all_there(receiver: Receiver, count: int, cursor: int, repeats: int = 0) -> None:
    seen = receiver.summary()
    assert seen["accepted"] == count
    assert seen["duplicates"] <= repeats
    broker = state("p")
    found = broker.deliveries.get("to")
    stored = broker.access.hash(broker.keys.destination("to"))
    broker.close()
    assert (found.cursor, found.divisions) == (cursor, ())
    assert not [name for name in stored if name.startswith(("shard:", "divided", "group", "ranges"))]
    assert found.counters["delivered"] == found.counters["matched"] == count


@pytest.fixture
def under_way(quick: Path, receiver: Receiver, broker: Broker) -> UnderWay:
    """Three micro-batches of 600 records, sealed. As long as they are held up, lane 0 stays in the first of them, and
    lanes 1 and 2 in the second."""
    pipeline(quick, receiver.url, records=600)
    changed(quick, "parallelism: 3}\n", "parallelism: 3}\n" + WAITS)
    # Of each shard the first 16 records pass: so many are processed at first.
    held = {*range(50, 200), *range(850, 1_000), *range(1_050, 1_200)}
    rows = [{"n": n, "k": "k", "waits": n in held} for n in range(1_800)]
    (quick / "data").mkdir(exist_ok=True)
    (quick / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hold().touch()
    sealed(3)
    return UnderWay(broker)


@dataclass
class UnderWay:
    broker: Broker

    def wait(self) -> None:
        """Waits until each lane is where it is held up, and has told the broker of records there."""
        until(self.reached, "two micro-batches under way")

    def reached(self) -> bool:
        first, second, *_ = [*self.confirmed(), 0, 0]
        # More than one lane can tell of.
        return first > 400 and second > 16

    def confirmed(self) -> list[int]:
        return [division.confirmed for division in self.broker.deliveries.get("to").divisions]

    def cut_off(self, beside: Beside) -> None:
        """Has a delivery end there, as the process of lane 1 is killed."""
        beside.cut_off(deliver, self.reached, hold().unlink)
