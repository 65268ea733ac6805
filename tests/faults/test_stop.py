"""Graceful and forceful stops with something in flight; what is in flight, what is dropped, which error is kept."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import PipelineStopped, Unavailable
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.topology import UNTOLD
from tests.faults.parts import Receiver, account, dead_letters, drive, events
from tests.micro_batch.harness import here, payloads, run_once, state, write_pipeline
from tests.waiting import until

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 500}
    lag-budget: {records: 1000}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s, key: k}}
      - id: web
        type: destination
        plugin: http
        settings: {url: "URL"}
        delivery: {timeout: 5s, max-unconfirmed: 8, order-by: key}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
    processors: [{id: mark, plugin: field.set, settings: {field: .Metadata.seen, value: "yes"}}]
"""


@pytest.mark.proves("C3", "C11", "C15")
def test_a_graceful_stop_delivers_and_acks_everything_in_flight_and_reads_nothing_new(
    quick: Path, receiver: Receiver, acks: list[dict[str, Any]]
) -> None:
    # Given one micro-batch sealed that a target which is down did not take, one that is not sealed, and new events
    write_pipeline(quick, "p", PIPELINE.replace("URL", receiver.url))
    rows = events(quick / "data", 1_500)
    receiver.mode("down")
    assert isinstance(run_once("p")["destinations.web"], Unavailable)
    assert plan_run("p", "second").micro_batch == 2
    with opened("p", "second") as context:
        read_source(context, "in", here, 5.0)
    # When it is stopped gracefully
    broker = state("p")
    broker.lifecycle.stop(0.0)
    # Then it is not stopped while the target is down, and that it is overdue can be seen
    run_once("p")
    assert broker.lifecycle.status().status == "stopping"
    assert broker.lifecycle.status().overdue
    # When the target is back
    receiver.mode("up")
    said = drive()
    # Then both micro-batches are delivered and acked, nothing more is read, and the pipeline is stopped
    assert broker.lifecycle.status().status == "stopped"
    assert "is stopped" in said[-1]["plan"]
    assert payloads(quick / "out/file.jsonl") == rows[:1_000]
    assert (receiver.accepted(), receiver.summary()["duplicates"]) == (1_000, 0)
    assert broker.positions.acked("in") == broker.positions.planned("in")
    assert len(acks) in (1, 2)
    # When it is started again, then it goes on
    broker.lifecycle.start()
    broker.close()
    drive()
    assert payloads(quick / "out/file.jsonl") == rows
    assert receiver.accepted() == 1_500
    account()


@pytest.mark.proves("C10", "C16")
def test_a_forceful_stop_ends_a_delivery_at_once_and_the_start_goes_on_from_the_cursors(
    quick: Path, receiver: Receiver, acks: list[dict[str, Any]]
) -> None:
    # Given a slow delivery under way
    slow = PIPELINE.replace("timeout: 5s, max", "timeout: 5s, rate-limit: 200, max").replace("URL", receiver.url)
    write_pipeline(quick, "p", slow)
    rows = events(quick / "data", 700)
    broker = state("p")
    receiver.hold(60)
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(run_once, "p")
        until(lambda: receiver.accepted() >= 60, "the middle of the delivery")
        # When the pipeline is stopped by force
        broker.lifecycle.force_stop()
        said = run.result(120)
    # Then the delivery ended in the middle, and no run does anything
    assert isinstance(said["destinations.web"], PipelineStopped)
    before = receiver.accepted()
    assert before < 500
    assert "is stopped" in run_once("p")["plan"]
    assert receiver.accepted() == before
    # When it is started again, then nothing is missing
    receiver.release()
    write_pipeline(quick, "p", slow.replace("rate-limit: 200, ", ""))
    broker.lifecycle.start()
    broker.close()
    drive()
    seen = receiver.summary()
    assert (seen["accepted"], seen["out_of_order"]) == (700, 0)
    assert seen["duplicates"] <= 8 + UNTOLD
    assert payloads(quick / "out/file.jsonl") == rows
    account()
    assert acks


@pytest.mark.proves("C16")
def test_a_forceful_stop_drops_what_is_unsealed_and_asks_the_source_again(quick: Path, receiver: Receiver) -> None:
    # Given a micro-batch that was read, and is not sealed
    write_pipeline(quick, "p", PIPELINE.replace("URL", receiver.url))
    rows = events(quick / "data", 400)
    plan_run("p", "first")
    with opened("p", "first") as context:
        read_source(context, "in", here, 5.0)
    broker = state("p")
    unsealed = broker.micro_batches.unsealed()
    assert unsealed is not None
    assert unsealed.missing == ["processors"]
    # When it is stopped by force and started
    broker.lifecycle.force_stop()
    broker.lifecycle.start()
    # Then its source is read again, and everything arrives
    again = broker.micro_batches.unsealed()
    broker.close()
    assert again is not None
    assert "sources.in" in again.missing
    drive()
    assert payloads(quick / "out/file.jsonl") == rows
    assert receiver.summary()["duplicates"] == 0
    account()


@pytest.mark.proves("C6", "C8", "C16", "I9")
def test_the_first_error_is_kept_whatever_fails_after_it(quick: Path, receivers: Callable[..., Receiver]) -> None:
    # Given two destinations that both refuse an event, and no dead-letter queue that takes it
    first, second = receivers("--refuse", "n=3"), receivers("--refuse", "n=3")
    text = PIPELINE.replace("URL", first.url)
    text = text.replace(
        "      - {id: file",
        f'      - {{id: late, type: destination, plugin: http, settings: {{url: "{second.url}"}}}}\n      - {{id: file',
    )
    write_pipeline(quick, "p", text)
    events(quick / "data", 10)
    # When the first one stops the pipeline, and others fail after it
    said = run_once("p")
    broker = state("p")
    assert isinstance(said["destinations.web"], PipelineStopped)
    stored = broker.lifecycle.status()
    assert stored.error is not None
    assert (stored.status, stored.error.node, stored.error.error_class) == ("degraded", "destinations.web", "http 400")
    broker.lifecycle.fail("destinations.late", "something else", "late")
    # Then the first error stays, and every run says it
    assert broker.lifecycle.status().error == stored.error
    said = run_once("p")
    assert isinstance(said["plan"], PipelineStopped)
    assert "400" in str(said["plan"])
    assert second.accepted() == 0
    # And the refused record is neither a dead letter nor acked
    assert dead_letters() == []
    assert broker.positions.acked("in") == {}
    # When the cause is fixed and the pipeline started, then everything arrives
    write_pipeline(
        quick, "p", text.replace("    micro-batch", "    dead-letter-queue: {window-size: 0}\n    micro-batch")
    )
    broker.lifecycle.start()
    broker.close()
    drive()
    found = account()["destinations"]
    assert [(d["delivered"], d["nacked"]) for d in found.values()] == [(9, 1), (9, 1), (10, 0)]


@pytest.mark.proves("C6", "C16", "I9")
def test_the_stored_error_is_that_of_the_record_that_used_up_the_window(quick: Path) -> None:
    # Given a window that tolerates one nack, and two records that fail for different reasons
    text = PIPELINE.partition("      - id: web")[0] + PIPELINE[PIPELINE.index("      - {id: file") :]
    window = "    dead-letter-queue: {window-size: 10, window-nack-threshold: 1}\n"
    failing = "      - {id: no-N, plugin: error, settings: {message: no N}, condition: '{{ eq .Payload.After.n N }}'}\n"
    text = text.partition("    processors")[0].replace("    micro-batch", f"{window}    micro-batch")
    write_pipeline(quick, "p", text + "    processors:\n" + failing.replace("N", "3") + failing.replace("N", "5"))
    events(quick / "data", 10)
    # When both fail
    said = run_once("p")
    # Then the one that was too many is told of, and stored
    assert "no 5" in str(said["processors"])
    broker = state("p")
    error = broker.lifecycle.status().error
    broker.close()
    assert error is not None
    assert (error.node, error.error) == ("processors/no-5", "no 5")
