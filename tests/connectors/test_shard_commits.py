"""What the tasks of shards commit to a Delta table, and commit once (`delivery.parallelism`, ADR 33)."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from conduit_tasks.connectors.delta.connector import DeltaDestination
from conduit_tasks.connectors.rows import ShardName
from tests.connectors.test_shard_files import rows, shard


def table(which: ShardName, **settings: str) -> DeltaDestination:
    made = DeltaDestination({"path": "t", **settings})
    made.pipeline, made.connector, made.shard = "p", "to", which
    made.open(None)
    return made


def in_table(home: Path) -> list[int]:
    import deltalake

    return sorted(pa.table(deltalake.DeltaTable(str(home / "t")).to_pyarrow_table())["n"].to_pylist())


@pytest.mark.proves("C10", "I4")
def test_a_commit_of_a_shard_that_was_made_and_not_confirmed_is_not_made_again(home: Path) -> None:
    """Given commits of two shards, then the same rows come again, others behind them, and the next micro-batch."""
    one, other = table(shard(0)), table(shard(1))
    one.write(rows(0, 3))
    other.write(rows(1, 4))
    table(shard(0)).write(rows(0, 3))
    table(shard(1)).write(rows(4, 7, through=3))
    assert in_table(home) == [0, 1, 3, 4, 7]
    table(shard(0)).write(rows(0, 3, micro_batch=2))
    assert in_table(home) == [0, 0, 1, 3, 3, 4, 7]


@pytest.mark.proves("I4")
def test_of_two_attempts_at_a_shard_one_commits_and_the_other_finds_that_it_has(home: Path) -> None:
    table(shard(1)).write(rows(1))
    one, two = table(shard(0)), table(shard(0))
    one.write(rows(0, 3))
    two.write(rows(0, 3))
    assert in_table(home) == [0, 1, 3]


def test_shards_that_add_columns_to_the_table_at_the_same_moment_all_commit(home: Path) -> None:
    table(shard(0)).write(rows(0))
    writers = [table(shard(number)) for number in range(3)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            writers[number].write(rows(number + 3, **{f"c{number}": number}))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert in_table(home) == [0, 3, 4, 5]
