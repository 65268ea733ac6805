"""Failures that may pass by themselves: tried again after a growing delay, and at the limit degraded (C8, C16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.airflow.operator import ConduitSubmitOperator
from conduit_tasks.broker.broker import Broker
from conduit_tasks.connectors.file.connector import FileSource
from conduit_tasks.errors import AckFailed, ConduitError, ConfigError, PipelineStopped, SourceError, Unavailable
from conduit_tasks.micro_batch.acks import ack_source
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.recovery import counting, died
from conduit_tasks.topology import Recovery
from tests.faults.parts import drive, events
from tests.micro_batch.harness import look, payloads, run_once, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    error-recovery: {min-delay: 60s, backoff-factor: 2, max-delay: 10m, max-retries: 2}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
"""


def fail(node: str, error: Exception) -> None:
    with opened("p", "r") as context, pytest.raises(type(error)), counting(context, node):
        raise error


def over(broker: Broker, *nodes: str) -> None:
    """The delays of these nodes end now: a machine that stands still for a while does not end one earlier."""
    for node in nodes:
        assert broker.redis.hset(broker.keys.lease(node), "retry_at", "0") == 0, f"{node} has a delay"


@pytest.fixture
def planned(quick: Path) -> Broker:
    """A micro-batch that is to be read."""
    write_pipeline(quick, "p", PIPELINE)
    events(quick / "data", 10)
    assert plan_run("p", "r").micro_batch == 1
    return state("p")


@pytest.mark.proves("C16", "I9")
def test_a_node_that_fails_is_left_alone_for_longer_and_longer_and_at_the_limit_the_pipeline_is_degraded(
    planned: Broker,
) -> None:
    # When a source fails
    fail("sources.in", SourceError("the mount is gone"))
    # Then the pipeline is recovering, says why, and starts no JVM before the delay is over
    status = planned.lifecycle.status()
    assert (status.status, status.error and status.error.error) == ("recovering", "SourceError: the mount is gone")
    work = look("p", "sources.in", "r")
    assert (work.submit, work.recovering) == (False, True)
    assert "the mount is gone" in work.reason
    over(planned, "sources.in")
    assert look("p", "sources.in", "r").submit
    # When it fails again, otherwise, then it waits for longer
    fail("sources.in", SourceError("the mount is slow"))
    (failing,) = planned.failures.failing("sources.in")
    assert 60 < failing.wait <= 120
    assert failing.failures == 2
    assert look("p", "sources.in", "r", cleared=True).submit, "somebody who clears the task wants it now"
    # When it fails more often than is tolerated, then the pipeline is degraded with the first of these errors
    fail("sources.in", SourceError("the mount is full"))
    status = planned.lifecycle.status()
    assert status.status == "degraded"
    assert status.error is not None
    assert (status.error.node, status.error.error) == ("sources.in", "SourceError: the mount is gone")
    with pytest.raises(PipelineStopped, match="the mount is gone"):
        plan_run("p", "r")
    # When it is started, then nothing of it is left, and everything goes on
    planned.lifecycle.start()
    assert planned.lifecycle.status().status == "running"
    assert planned.failures.failing("sources.in") == []
    drive()
    planned.close()


@pytest.mark.proves("C16")
def test_progress_ends_a_row_of_failures(planned: Broker, quick: Path) -> None:
    for _ in range(2):
        fail("sources.in", SourceError("a"))
        fail("destinations.file", ConfigError("b"))
    over(planned, "sources.in", "destinations.file")
    drive()
    assert planned.lifecycle.status().status == "running"
    assert planned.failures.failing(*planned.lifecycle.nodes()) == []
    assert len(payloads(quick / "out/file.jsonl")) == 10
    fail("sources.in", SourceError("c"))
    assert planned.failures.failing("sources.in")[0].failures == 1
    planned.close()


@pytest.mark.proves("C16")
@pytest.mark.parametrize("error", [Unavailable("down"), PipelineStopped("stopped")])
def test_an_outage_of_a_destination_and_a_stop_are_no_failures(planned: Broker, error: ConduitError) -> None:
    fail("destinations.file", error)
    assert planned.failures.failing("destinations.file") == []
    planned.close()


@pytest.mark.proves("C16")
def test_a_driver_that_was_killed_is_counted_by_who_started_it(planned: Broker) -> None:
    died("p", "sources.in", "r", "exit code -9")
    (failing,) = planned.failures.failing("sources.in")
    assert failing.error.error_class == "killed"
    operator = ConduitSubmitOperator(task_id="in", pipeline_id="p", node="sources.in", drain_limit=60.0, retries=0)
    operator._died("r", 137)
    assert planned.failures.failing("sources.in")[0].failures == 2
    planned.close()


@pytest.mark.proves("I5")
def test_a_failure_that_is_told_twice_counts_once(planned: Broker) -> None:
    for _ in range(2):
        assert planned.failures.note("sources.in", "the same", "e", "E", Recovery()) == 1
    assert planned.failures.note("sources.in", "another", "e", "E", Recovery(max_retries=-1)) == 2
    planned.lifecycle.force_stop()
    assert planned.failures.note("sources.in", "third", "e", "E", Recovery()) == 2, "a stopped pipeline fails no more"
    planned.close()


@pytest.mark.proves("C16")
def test_a_source_that_cannot_be_planned_is_left_alone_while_the_backlog_goes_on(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(quick, "p", PIPELINE)
    events(quick / "data", 10)

    def gone(*_: Any) -> None:
        raise SourceError("no such mount")

    with monkeypatch.context() as patch:
        patch.setattr(FileSource, "plan", gone)
        assert isinstance(run_once("p")["plan"], SourceError)
    assert "no such mount" in run_once("p")["plan"], "it is not asked again at once"
    broker = state("p")
    over(broker, "plan.in")
    drive()
    assert broker.failures.failing("plan.in") == []
    assert len(payloads(quick / "out/file.jsonl")) == 10
    broker.close()


@pytest.mark.proves("C8", "C12")
def test_a_source_that_cannot_be_reached_for_its_ack_is_given_the_same_one_again_then_the_pipeline_stops(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a source that does not answer when it is acked
    write_pipeline(quick, "p", PIPELINE)
    events(quick / "data", 10)
    given: list[Any] = []

    def unreachable(_: Any, position: Any) -> None:
        given.append(position)
        raise ConnectionError("reset")

    broker = state("p")
    with monkeypatch.context() as patch:
        patch.setattr(FileSource, "ack", unreachable)
        with pytest.raises(AckFailed):
            run_once("p")
        # Then it is left alone for a while, is given the same position again, and at the limit the pipeline stops
        assert ack_source("p", "in", "r")["acked"] is None
        assert len(given) == 1
        for _ in range(2):
            over(broker, "acks.in")
            with pytest.raises(AckFailed):
                ack_source("p", "in", "r")
    assert given == [given[0]] * 3
    status = broker.lifecycle.status()
    assert (status.status, status.error and status.error.node) == ("degraded", "acks.in")
    # When it answers and the pipeline is started, then it is acked
    broker.lifecycle.start()
    assert ack_source("p", "in", "r")["acked"] == given[0]
    assert broker.positions.acked("in") == given[0]
    broker.close()


@pytest.mark.proves("C8", "C16")
def test_a_source_that_does_not_take_its_ack_stops_the_pipeline_with_its_error(
    quick: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(quick, "p", PIPELINE)
    events(quick / "data", 10)

    def refused(*_: Any) -> None:
        raise SourceError("no such position")

    broker = state("p")
    with monkeypatch.context() as patch:
        patch.setattr(FileSource, "ack", refused)
        with pytest.raises(PipelineStopped, match="did not take its ack"):
            run_once("p")
    status = broker.lifecycle.status()
    assert status.status == "degraded"
    assert status.error is not None
    assert (status.error.node, status.error.error_class) == ("acks.in", "SourceError")
    assert "no such position" in status.error.error
    assert broker.positions.acked("in") == {}
    broker.lifecycle.start()
    drive()
    assert broker.positions.acked("in") == broker.positions.planned("in")
    broker.close()
