"""The last rows of a part file: exactly these, from its end, within a bound."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from conduit_tasks.errors import SpoolError
from conduit_tasks.record.schema import SPOOL_SCHEMA
from conduit_tasks.spool.manifest import PartFile
from conduit_tasks.spool.spool import Spool
from conduit_tasks.spool.tail import Budget, last_rows
from tests.spool.rows import rows


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))


@pytest.fixture
def file(spool: Spool) -> PartFile:
    """Three row groups of 100 rows; every third row is wanted, of the last group none."""
    part = spool.writer("p", 3, "sources.in", 7).part(0, ["web"])
    for group in range(3):
        batch = rows(100, start=100 * group)
        wanted = [group < 2 and n % 3 == 0 for n in range(100 * group, 100 * group + 100)]
        part.write(batch.append_column("to.web", pa.array(wanted)))
    return part.close()


def last(spool: Spool, file: PartFile, count: int, budget: Budget | None = None, wanted: bool = False) -> list[int]:
    found = last_rows(
        spool,
        file,
        count,
        columns=SPOOL_SCHEMA.names,
        budget=budget or Budget(1 << 30),
        row_filter="to.web" if wanted else None,
    )
    assert all(batch.schema.names == SPOOL_SCHEMA.names for batch in found)
    return [n for batch in found for n in batch.column("n").to_pylist()]


@pytest.mark.parametrize("count", [1, 5, 100, 101, 299, 300, 1_000])
def test_exactly_the_last_rows_are_read_in_order(count: int, spool: Spool, file: PartFile) -> None:
    assert last(spool, file, count) == list(range(max(0, 300 - count), 300))


def test_of_rows_that_are_wanted_the_last_are_found_in_earlier_row_groups(spool: Spool, file: PartFile) -> None:
    every = [n for n in range(200) if n % 3 == 0]
    assert last(spool, file, 40, wanted=True) == every[-40:]
    assert last(spool, file, 1_000, wanted=True) == every


def test_no_more_row_groups_are_read_than_the_budget_has_room_for_but_one(spool: Spool, file: PartFile) -> None:
    budget = Budget(1)
    assert last(spool, file, 150, budget) == list(range(200, 300))
    assert budget.spent
    assert last(spool, file, 150, budget) == [], "what is used up is used up"


def test_a_file_that_was_changed_or_lacks_a_column_is_an_error(spool: Spool, file: PartFile, tmp_path: Path) -> None:
    with pytest.raises(SpoolError, match="cannot be read"):
        last_rows(spool, file, 1, columns=["nothing"], budget=Budget(1))
    path = tmp_path / "spool" / file.path
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SpoolError, match="was changed"):
        last(spool, file, 1)
