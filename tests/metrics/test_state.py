"""Metrics of real pipelines on a real broker, parsed by Prometheus' own client."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conduit_tasks.airflow.api.overview import brokers, exposed
from conduit_tasks.pipeline.load import load_folder
from conduit_tasks.stack.ports import free_port
from tests.faults.parts import events
from tests.fork import conduit
from tests.micro_batch.harness import run_once, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 6}
    isolate: true
    lag-budget: {records: 100}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - {id: file, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
      - id: away
        type: destination
        plugin: http
        settings: {url: "http://127.0.0.1:1/"}
        delivery: {timeout: 1s}
  - id: idle
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "nothing/*.jsonl"}}
      - {id: out, type: destination, plugin: log}
"""


def figures(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, label values: the pipeline's first, the others in the order of their names) → value."""
    return {
        (
            sample.name,
            tuple(sample.labels[name] for name in sorted(sample.labels, key=lambda n: (n != "pipeline", n))),
        ): (sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture
def ran(home: Path) -> Path:
    """Ten records read, six of them in the only micro-batch: at a file, and not at a target that is away."""
    events(home / "data", 10)
    write_pipeline(home, "p", PIPELINE)
    run_once("p")
    return home


def test_lag_outcomes_and_the_spool_are_those_of_the_broker(ran: Path) -> None:
    found = figures(exposed(load_folder(ran / "include" / "pipelines").pipelines).decode())
    assert found["conduit_broker_up", ()] == 1
    assert found["conduit_destination_records_total", ("p", "file", "delivered")] == 6
    assert found["conduit_destination_lag_records", ("p", "file")] == 0
    assert found["conduit_destination_lag_records", ("p", "away")] == 6
    assert found["conduit_destination_lag_seconds", ("p", "away")] > 0
    assert found["conduit_source_records_total", ("p", "sources.in", "read")] == 6
    assert found["conduit_sealed_micro_batches_total", ("p",)] == found["conduit_spool_micro_batches", ("p",)] == 1
    assert found["conduit_spool_bytes", ("p",)] > 0
    statuses = [n for (name, labels), n in found.items() if (name, labels[:1]) == ("conduit_pipeline_status", ("p",))]
    assert sum(statuses) == 1
    # A pipeline that never ran has a status and no destinations yet
    assert found["conduit_pipeline_status", ("idle", "running")] == 1
    assert ("conduit_destination_lag_records", ("idle", "out")) not in found
    # No label names a URL, a path or a record
    assert not any("/" in label or "127.0.0.1" in label for _, labels in found for label in labels)


def test_a_broker_that_is_away_is_a_figure_too(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conduit_tasks.errors import BrokerUnavailable
    from conduit_tasks.operate import metrics

    pipelines = load_folder(ran / "include" / "pipelines").pipelines
    with brokers() as broker_of:

        def away(id: str) -> object:
            raise BrokerUnavailable("gone")

        def gone(*given: Any) -> Iterator[Any]:
            yield next(read(*given))
            raise BrokerUnavailable("gone")

        text = metrics.exposed(pipelines, away)  # type: ignore[arg-type]
        assert figures(text.decode()) == {("conduit_broker_up", ()): 0}
        text = metrics.exposed(pipelines, broker_of)
        assert figures(text.decode())["conduit_broker_up", ()] == 1
        # Nothing that was read before it went is told
        read = metrics.figures
        monkeypatch.setattr(metrics, "figures", gone)
        text = metrics.exposed(pipelines, broker_of)
        assert figures(text.decode()) == {("conduit_broker_up", ()): 0}
        assert [each.value for each in metrics.samples(pipelines, broker_of)] == [0]


@pytest.mark.slow
def test_the_command_prints_them_and_serves_them(ran: Path) -> None:
    printed = conduit("metrics")
    assert printed.returncode == 0
    assert figures(printed.stdout)["conduit_destination_records_total", ("p", "file", "delivered")] == 6
    port = free_port()
    code = "from conduit_tasks.cli.main import main; main()"
    serving = subprocess.Popen([sys.executable, "-c", code, "metrics", "--serve", str(port)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                    text = answer.read().decode()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert figures(text)["conduit_broker_up", ()] == 1
    finally:
        serving.terminate()
        serving.wait(120)
