"""How the limits of a micro-batch are shared out between sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.micro_batch import plan
from tests.micro_batch.harness import lines, run_once, run_until_quiet, state, write_pipeline
from tests.micro_batch.test_whole import events

SOURCE = """
      - id: {id}
        type: source
        plugin: builtin:file
        settings: {{path: "data/{id}*.jsonl", format: jsonl, settle: 0s}}"""
PIPELINE = """version: "2.2"
pipelines:
  - id: p
    status: running
    micro-batch: {{{limit}}}
    connectors:{sources}
      - id: out
        type: destination
        plugin: builtin:file
        settings: {{path: out.jsonl}}
"""


def three(home: Path, limit: str) -> None:
    sources = "".join(SOURCE.format(id=id) for id in "abc")
    write_pipeline(home, "p", PIPELINE.format(limit=limit, sources=sources))


def read_of(home: Path) -> list[dict[str, int]]:
    """Per micro-batch that is still known, records of each source."""
    broker = state("p")
    found = [broker.micro_batches.find(m) for m in range(1, broker.micro_batches.latest_sealed() + 1)]
    broker.close()
    return [{s: sum(p.records or 0 for p in of) for s, of in mb.slices.items()} for mb in found if mb is not None]


@pytest.mark.proves("C13", "I7")
@pytest.mark.parametrize("limit", ["max-records: 1", "max-records: 2", "max-bytes: 1"])
def test_no_source_starves_by_a_limit_below_the_number_of_sources(home: Path, limit: str) -> None:
    """Given three sources that always have something, and less room than sources, then after six micro-batches each of
    them has been read from twice or more."""
    three(home, limit)
    for id in "abc":
        events(home / "data", f"{id}.jsonl", 0, 20)
    for n in range(6):
        run_once("p", f"run-{n}")
    read = read_of(home)
    assert all(sum(of.values()) <= 2 for of in read)
    assert all(sum(of.get(id, 0) for of in read) >= 2 for id in "abc"), read


def test_a_source_that_has_nothing_leaves_its_share_to_the_others(home: Path) -> None:
    three(home, "max-records: 1")
    events(home / "data", "c.jsonl", 0, 4)
    run_until_quiet("p")
    assert len(lines(home / "out.jsonl")) == 4


def test_a_micro_batch_has_a_bounded_number_of_slices(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given more files than a micro-batch may have slices, then several read all of them; the bound is of all sources
    together, and starves none."""
    monkeypatch.setattr(plan, "SLICES", 3)
    three(home, "max-records: 1000")
    for n in range(8):
        for id in "abc":
            events(home / "data", f"{id}{n}.jsonl", n * 10, 2)
    run_until_quiet("p")
    broker = state("p")
    slices = [broker.micro_batches.get(m).slices for m in range(1, broker.micro_batches.latest_sealed() + 1)]
    broker.close()
    assert [sum(map(len, of.values())) for of in slices] == [3] * 8
    assert all(set(of) == {"a", "b", "c"} for of in slices)
    assert len(lines(home / "out.jsonl")) == 48
