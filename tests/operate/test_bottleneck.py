"""Who waits for whom, and the stages of the micro-batch in front: on a real pipeline, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.cli.live import bottleneck as told
from conduit_tasks.micro_batch.context import open_broker, opened
from conduit_tasks.micro_batch.deliver import deliver_destination
from conduit_tasks.micro_batch.process import process
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.operate.bottleneck import bottleneck
from conduit_tasks.operate.status import snapshot
from conduit_tasks.record.counts import Counts
from conduit_tasks.topology import Breaker, Recovery
from tests.faults.parts import events
from tests.micro_batch.harness import here, plan_run, run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 10}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: one, type: destination, plugin: file, settings: {path: out/one.jsonl}}
      - {id: two, type: destination, plugin: file, settings: {path: out/two.jsonl}, delivery: {breaker: {failures: 1}}}
    processors: [{id: stamp, plugin: field.set, settings: {field: .Metadata.way, value: "1"}}]
"""
WIDE = PIPELINE.replace("micro-batch:", "lag-budget: {records: 1000}\n    micro-batch:")


@pytest.fixture
def broker(home: Path) -> Broker:
    """That of `p`, with thirty records to read."""
    write_pipeline(home, "p", PIPELINE)
    events(home / "data", 30)
    return open_broker("p")


def said() -> tuple[str, str, list[str]] | None:
    """Rule, node and who waits, or None."""
    found = snapshot("p")["bottleneck"]
    return found and (found["rule"], found["node"], list(found["waiting"]))


def sealed(run: str = "run") -> None:
    """The next micro-batch is read and sealed."""
    plan_run("p", run)
    with opened("p", run) as context:
        read_source(context, "in", here, 5.0)
        process(context, here, 5.0)


def delivered(id: str) -> None:
    with opened("p", "run") as context:
        deliver_destination(context, id, here, run="run", wait=5.0, cleared=False, progress=lambda **_: None)


BOTH = ["destinations.one", "destinations.two"]


def test_a_micro_batch_on_its_way_shows_whom_the_others_wait_for(broker: Broker) -> None:
    # Nothing is there
    assert said() is None
    assert snapshot("p")["front"] is None
    # It is open
    plan_run("p", "run")
    assert said() == ("reading", "sources.in", ["processors", *BOTH])
    front = snapshot("p")["front"]
    assert (front["number"], front["state"], front["records"]) == (1, "open", 10)
    assert (front["read"], front["processed"]) == ({"done": 0, "of": 1}, {"done": 0, "of": 1})
    # It is read
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
    assert said() == ("processing", "processors", BOTH)
    found = snapshot("p")
    assert (found["front"]["read"], found["sources"][0]["done"]) == ({"done": 1, "of": 1}, 10)
    # It is sealed; no task is at work on it
    with opened("p", "run") as context:
        process(context, here, 5.0)
    assert said() == ("idle", "destinations.one", ["sources.in"])
    front = snapshot("p")["front"]
    assert (front["state"], front["records"], front["sealed"]) == ("sealed", 10, {"done": 1, "of": 1})
    assert front["delivered"] == {"one": {"done": 0, "of": 10}, "two": {"done": 0, "of": 10}}
    # One has it, and the other a part of it
    delivered("one")
    with broker.leases.acquire("destinations.two", "run@host:1") as lease:
        broker.deliveries.confirm("two", 1, lease.token, RangeSet(((0, 3),)), Counts(matched=4, delivered=4))
        assert said() == ("delivering", "destinations.two", ["sources.in"])
        found = snapshot("p")
        assert found["front"]["delivered"] == {"one": {"done": 10, "of": 10}, "two": {"done": 4, "of": 10}}
        assert (found["destinations"][1]["work"], found["destinations"][1]["done"]) == ("at work", 4)
        assert found["holders"]["destinations.two"]["owner"] == "run@host:1"
        assert found["front"]["acked"] == {"done": 0, "of": 1}
    # All of it is done
    run_once("p", "next")
    while (found := snapshot("p"))["sealed"] < 3 or found["backlog"]["micro_batches"]:
        run_once("p", "next")
    assert said() is None
    assert (found["front"]["state"], found["front"]["number"], found["front"]["acked"]) == (
        "done",
        3,
        {"done": 1, "of": 1},
    )


def test_a_destination_that_cannot_deliver_is_named_before_one_that_is_only_slow(broker: Broker) -> None:
    sealed()
    # Stopped
    broker.lifecycle.halt_destination("two")
    assert said() == ("stopped", "destinations.two", ["sources.in"])
    broker.lifecycle.start_destination("two")
    # Its task has ended with work left
    broker.runs.begin("run", None, 0)
    broker.runs.tell_at_work("run", "destinations.two", -1)
    assert said() == ("down", "destinations.two", ["sources.in"])
    # Failing
    broker.failures.note("destinations.two", "1", "no such host", "OSError", Recovery())
    assert said() == ("failing", "destinations.two", ["sources.in"])
    # Its breaker is open
    with broker.leases.acquire("destinations.two", "run") as lease:
        options: dict[str, Any] = {"fresh": False, "probe": False, "tried": 0, "retry_after": 0.0, "error": "503 hush"}
        broker.breakers.trip("two", lease.token, "1", Breaker(failures=1, pause=60.0), failures=1, **options)
    found = snapshot("p")
    assert said() == ("breaker", "destinations.two", ["sources.in"])
    assert "hush" not in str(found["bottleneck"]), "it quotes no error: whoever may see the pipeline sees it"
    why = "its breaker is open: nothing is sent until one record was tried"
    assert told(found) == f"bottleneck: destinations.two: {why}; sources.in waits for it"
    # The pipeline stands still
    broker.lifecycle.fail("destinations.one", "the disk is full", "OSError")
    assert said() == ("degraded", "destinations.one", ["sources.in", "processors", "destinations.two"])
    broker.lifecycle.start()
    broker.lifecycle.force_stop()
    assert said() == ("stopped", "", ["sources.in", "processors", *BOTH])


def test_a_processor_that_stops_the_pipeline_is_what_everything_waits_for(home: Path, broker: Broker) -> None:
    # Given a processor that needs a field which raw data has not
    write_pipeline(home, "p", PIPELINE.replace(".Metadata.way", ".Payload.After.way").replace("jsonl, ", "text, "))
    # When it is met
    run_once("p", "run")
    # Then it stopped the pipeline, and it is the node, not its processor, that the others wait for
    found = snapshot("p")
    assert (found["status"], found["error"]["node"]) == ("degraded", "processors/stamp")
    assert said() == ("degraded", "processors", ["sources.in", *BOTH])
    # And the micro-batch is not processed, and not read either
    front = found["front"]
    assert (front["state"], front["failed"]) == ("open", "processed")
    assert (front["read"], front["processed"]) == ({"done": 1, "of": 1}, {"done": 0, "of": 1})


def test_what_is_no_node_of_the_drawing_is_told_as_the_one_that_it_belongs_to(broker: Broker) -> None:
    for node, shown, waits in (
        ("seal", "seal", ["sources.in", "processors", *BOTH]),
        ("sources.in/up", "sources.in", ["processors", *BOTH]),
        ("acks.in", "sources.in", ["processors", *BOTH]),
        ("destinations.two/up", "destinations.two", ["sources.in", "processors", "destinations.one"]),
        ("acks.elsewhere", "", ["sources.in", "processors", *BOTH]),
    ):
        broker.lifecycle.register(["in"], ["one", "two"])
        broker.lifecycle.fail(node, "no", "RecordError")
        assert said() == ("degraded", shown, waits)
        broker.lifecycle.start()
    # And so where a node fails that is tried again
    broker.failures.note("acks.in", "1", "no such host", "OSError", Recovery())
    assert said() == ("failing", "sources.in", ["processors", *BOTH])


def test_a_source_that_fails_is_what_everything_waits_for(broker: Broker) -> None:
    broker.lifecycle.register(["in"], ["one", "two"])
    broker.failures.note("plan.in", "1", "no such host", "OSError", Recovery())
    assert said() == ("failing", "sources.in", ["processors", *BOTH])


def test_within_a_wide_lag_budget_reading_goes_on_and_the_slowest_is_named(home: Path, broker: Broker) -> None:
    write_pipeline(home, "p", WIDE)
    sealed()
    # Of one micro-batch nobody can say who is slow
    assert said() == ("idle", "destinations.one", [])
    with broker.leases.acquire("destinations.one", "run"):
        assert said() == ("delivering", "destinations.one", [])
    sealed()
    delivered("one")
    assert said() == ("slower", "destinations.two", [])
    assert snapshot("p")["front"]["after"] == 1
    # What is read is what the others wait for where they have all else
    delivered("two")
    plan_run("p", "run")
    assert said() == ("reading", "sources.in", ["processors", *BOTH])
    # Used up, it holds the sources
    with opened("p", "run") as context:
        read_source(context, "in", here, 5.0)
        process(context, here, 5.0)
    write_pipeline(home, "p", WIDE.replace("1000", "5"))
    assert said() == ("idle", "destinations.one", ["sources.in"])


def test_of_several_at_the_same_micro_batch_the_one_with_most_left_is_named(broker: Broker) -> None:
    sealed()
    found = snapshot("p")
    found["destinations"][1]["lag"]["records"] = 11
    first = bottleneck(found)
    assert first is not None
    assert (first.node, first.trouble) == ("destinations.two", False)
    # An older one comes first
    found["destinations"][1]["cursor"] = 1
    again = bottleneck(found)
    assert again is not None
    assert again.node == "destinations.one"
