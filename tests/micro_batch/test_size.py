"""Which work is small, and when Spark's start is begun for work that is not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conduit_tasks.connectors.base import Slice
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.micro_batch.plan import plan_run
from conduit_tasks.micro_batch.read import read_source
from conduit_tasks.micro_batch.size import Foresight, Size, of_micro_batch, of_slices
from conduit_tasks.settings import forget
from conduit_tasks.topology import Limits, Node
from tests.faults.parts import events
from tests.micro_batch.harness import here, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: file, settings: {path: "data/*.jsonl", format: jsonl, settle: 0s}SOURCE}
      - {id: to, type: destination, plugin: file, settings: {path: out/file.jsonl, format: payload}}
    processors: [PROCESSORS]
"""
SQL = '{id: s, plugin: sql, settings: {query: "SELECT * FROM records"}}'


@pytest.fixture(autouse=True)
def limits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 records and 4,000 bytes."""
    monkeypatch.setenv("CONDUIT_SMALL_RECORDS", "100")
    monkeypatch.setenv("CONDUIT_SMALL_BYTES", "4000")
    forget()


@pytest.mark.parametrize(
    ("size", "pieces", "small"),
    [
        (Size(100, 4_000), 9, True),
        (Size(101, 4_000), 1, False),
        (Size(100, 4_001), 1, False),
        (Size(100, None), 9, True),
        (Size(None, 4_000), 9, True),
        (Size(None, 4_001), 1, False),
        (Size(101, None), 1, False),
        (Size(), 1, True),
        (Size(), 2, False),
    ],
)
def test_work_is_small_if_what_is_known_of_it_is_and_unknown_work_only_in_one_piece(
    size: Size, pieces: int, small: bool
) -> None:
    assert size.small(pieces) is small


@pytest.mark.parametrize("name", ["CONDUIT_SMALL_RECORDS", "CONDUIT_SMALL_BYTES"])
def test_nothing_is_small_where_a_limit_is_0(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "0")
    forget()
    assert not Size(0, 0).small()
    assert not Size().small()


def piece(records: int | None, size: int | None) -> Slice:
    return Slice("", "", 0, 1, records, size)


@pytest.mark.parametrize(
    ("slices", "limit", "size"),
    [
        ([piece(1, 2), piece(3, 4)], None, Size(4, 6)),
        ([piece(None, 2), piece(None, 4)], None, Size(None, 6)),
        ([piece(3, None)], None, Size(3, None)),
        ([piece(None, None)], None, Size()),
        ([piece(None, None)], 500_000, Size()),
        ([piece(None, None), piece(None, None)], 100, Size(100, None)),
        ([piece(1, 2), piece(None, None)], None, Size()),
    ],
)
def test_the_size_of_slices_is_their_sum_or_what_the_micro_batch_may_hold(
    slices: Sequence[Slice], limit: int | None, size: Size
) -> None:
    assert of_slices(slices, Limits(records=limit)) == size


@pytest.mark.parametrize("count", [3, 200])
def test_a_micro_batch_is_as_large_as_planned_then_as_read_then_as_stored(home: Path, count: int) -> None:
    write_pipeline(home, "p", PIPELINE.replace("SOURCE", "").replace("[PROCESSORS]", "[]"))
    events(home / "data", count)
    size = (home / "data/a.jsonl").stat().st_size
    plan_run("p", "run")
    with opened("p", "run") as context:
        found = context.broker.micro_batches.get(1)
        assert of_micro_batch(found, context.pipeline).bytes == size
        read_source(context, "in", here, 5.0)
        found = context.broker.micro_batches.get(1)
        stored = sum(f.stat().st_size for f in (home / ".conduit/spool").rglob("part-*.parquet"))
        assert of_micro_batch(found, context.pipeline) == Size(count, stored)


@pytest.mark.parametrize(
    ("count", "node", "processors", "source", "begins"),
    [
        (3, "destinations.to", "", "", False),
        (300, "destinations.to", "", "", True),
        (3, "processors", "", "", False),
        (300, "processors", "", "", True),
        (300, "sources.in", "", "", False),  # it begins with its own work at once
        (3, "processors", SQL, "", True),
        (3, "destinations.to", SQL, "", False),
        (3, "sources.in", "", f", processors: [{SQL}]", True),
    ],
)
def test_sparks_start_is_begun_once_a_large_micro_batch_is_being_read_or_at_once_for_sql(
    home: Path, count: int, node: str, processors: str, source: str, begins: bool
) -> None:
    write_pipeline(home, "p", PIPELINE.replace("SOURCE", source).replace("PROCESSORS", processors))
    begun: list[str] = []
    with opened("p", "run") as context:
        foresight = Foresight(context, Node(node), lambda: begun.append(node))
        # While nothing is read, only what always needs Spark begins its start
        foresight.look()
        always = begins and count == 3
        assert begun == [node] * always
        # When a micro-batch is being read
        events(home / "data", count)
        plan_run("p", "run")
        foresight.look()
        foresight.look()
        # Then the start is begun if it is large, and once
        assert begun == [node] * begins


def test_nothing_is_looked_at_where_there_is_nothing_to_begin() -> None:
    Foresight(None, Node("destinations.to"), None).look()  # type: ignore[arg-type] # it is not touched
