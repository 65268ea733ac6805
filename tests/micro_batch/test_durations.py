"""Durations as the broker keeps them: every matched record's latency once, every stage of a micro-batch once."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.delivery.latency import Latencies
from conduit_tasks.metrics.histogram import BOUNDS, histograms
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from tests.faults.parts import events
from tests.micro_batch.harness import deliver_again, run_until_quiet, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 40}
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}}
      - id: out
        type: destination
        plugin: file
        settings: {path: out.jsonl, format: payload}
    processors:
      - {id: again, plugin: clone, settings: {count: 2}}
      - {id: mark, plugin: field.set, settings: {field: .Payload.After.x, value: y}}
"""


def ago(seconds: float) -> str:
    return str(int((time.time() - seconds) * 1e9))


def counts(fields: dict[str, int]) -> dict[float, int]:
    """Upper bound → how many."""
    (found,) = histograms({k: str(v) for k, v in fields.items()}).values()
    return {bound: n for bound, n in zip((*BOUNDS, float("inf")), found.counts) if n}


def test_a_record_is_counted_when_it_is_confirmed_and_once_whatever_was_derived_from_it() -> None:
    # Given two batches: seq 0 of an hour ago, 1 twice and across them, 4 confirmed before, 2 and 3 not matched
    origins = [Origin("p", "c", "", {"opencdc.readAt": ago(40)})]
    old = Record(b"0", metadata={"opencdc.createdAt": ago(3000)})
    one, two = spool_batch([0, 0], [0, 1], [old, Record(b"1")]), spool_batch([0] * 3, [1, 4, 5], [Record(b"x")] * 3)
    latencies = Latencies("destinations.d", origins, RangeSet(((4, 4),)))
    batches = iter([(np.array([0, 1]), one), (np.array([1, 4, 5]), two)])
    assert len(list(latencies.watch(batches))) == 2
    # Then
    assert counts(latencies.observed([(0, 0)])) == {3600: 1}
    assert counts(latencies.observed([(1, 3), (5, 9)])) == {60: 2}
    assert latencies.observed([(0, 9)]) == {}


def test_rows_that_are_read_again_count_once() -> None:
    origins = [Origin("p", "c", "", {"opencdc.readAt": ago(1)})]
    latencies = Latencies("destinations.d", origins, RangeSet())
    one, two = ((np.array(seqs), spool_batch([0, 0], seqs, [Record(b"")] * 2)) for seqs in ([0, 1], [2, 3]))
    first, second = latencies.watch(iter([one, two])), latencies.watch(iter([one, two]))
    next(first)
    assert sum(counts(latencies.observed([(0, 0)])).values()) == 1
    next(second)
    next(second)
    next(first)
    assert sum(counts(latencies.observed([(1, 3)])).values()) == 3


def test_a_pipeline_tells_how_long_every_stage_took_and_each_record_was_on_its_way(home: Path) -> None:
    # Given a hundred records in three micro-batches, each cloned
    events(home / "data", 100)
    write_pipeline(home, "p", PIPELINE)
    runs = run_until_quiet("p")
    # Then
    with opened("p", "look") as context:
        found, state = context.broker.micro_batches.histograms(), context.broker.deliveries.get("out")
        assert found["destinations.out", "latency"].count == state.counters["matched"] > 0
        stages = {key: h.count for key, h in found.items() if key[1] != "latency"}
        assert stages == {
            ("sources.in", "read"): 3,
            ("sources.in", "spool"): 3,
            ("processors", "read"): 3,
            ("processors", "process"): 3,
            ("processors", "spool"): 3,
            ("destinations.out", "deliver"): 3,
            ("acks.in", "ack"): 3,
        }
    # And what a cleared task sends again does not count as new
    deliver_again("p", "out", "run-0")
    with opened("p", "look") as context:
        assert context.broker.deliveries.get("out").counters["redelivered"] > 0
        assert context.broker.micro_batches.histograms() == found
    assert len(runs) == 4
