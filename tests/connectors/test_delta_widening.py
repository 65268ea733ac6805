"""Wider columns of a Delta table, which is rewritten for them (`schema: evolve`, docs/schema-evolution.md)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from conduit_tasks.connectors.delta import widen
from conduit_tasks.connectors.delta.connector import DeltaDestination, DeltaSource
from conduit_tasks.connectors.rows import Rows, ShardName
from conduit_tasks.errors import ConfigError, DoesNotFit, Fenced, Refused, Unavailable
from tests.connectors.test_delta import destination, numbers_of, read_all, rows

WIDE = 2**40


def table_of(home: Path, rows: int = 2, **more: Any) -> None:
    """Makes a table with a column `n` of 32 bits, of rows 1, 2, …"""
    types = pa.schema([pa.field("n", pa.int32()), pa.field("v", pa.string())])
    there = pa.table({"n": range(1, rows + 1), "v": ["x"] * rows}, schema=types)
    write_deltalake(home / "t", there, **more)


def evolving(**settings: str) -> DeltaDestination:
    out = destination(**{"schema": "evolve", **settings})
    out.open(None)
    return out


def held(home: Path) -> list[Any]:
    return sorted(DeltaTable(home / "t").to_pyarrow_table().column("n").to_pylist())


def type_of(home: Path, name: str = "n") -> pa.DataType:
    return pa.schema(DeltaTable(home / "t").schema().to_arrow()).field(name).type


WIDER = [
    (pa.int8(), 1, 300, pa.int64()),
    (pa.int16(), 1, 70_000, pa.int64()),
    (pa.int32(), 1, WIDE, pa.int64()),
    (pa.float32(), 0.5, 0.123456789, pa.float64()),
    (pa.decimal128(5, 2), Decimal("1.25"), "1234567.25", pa.decimal128(9, 2)),
    (pa.decimal128(5, 2), Decimal("1.25"), 1.255, pa.decimal128(6, 3)),
    (pa.struct([pa.field("i", pa.int32())]), {"i": 1}, {"i": WIDE}, pa.struct([pa.field("i", pa.int64())])),
    (pa.list_(pa.float32()), [0.5], [0.123456789, None], pa.list_(pa.float64())),
]


@pytest.mark.proves("C6")
@pytest.mark.parametrize(("type_", "old", "new", "wide"), WIDER, ids=[f"{t[0]}-{t[3]}" for t in WIDER])
def test_a_column_becomes_as_wide_as_its_values(
    home: Path, type_: pa.DataType, old: Any, new: Any, wide: pa.DataType
) -> None:
    write_deltalake(home / "t", pa.table({"k": [1, 2], "n": pa.array([old, None], type_)}))
    evolving().write(rows({"k": 3, "n": new}, {"k": 4}))
    found = {row["k"]: row["n"] for row in DeltaTable(home / "t").to_pyarrow_table().to_pylist()}
    assert found == {1: old, 2: None, 3: Decimal(str(new)) if pa.types.is_decimal(wide) else new, 4: None}
    assert type_of(home).equals(wide)


NOT_WIDER = [
    (pa.int64(), 1, 2**70),
    (pa.int32(), 1, 0.5),
    (pa.date32(), None, "2026-01-01T12:00:00"),
    (pa.decimal128(37, 0), Decimal(1), "1.25"),
]


@pytest.mark.parametrize(("type_", "old", "new"), NOT_WIDER, ids=[str(t[0]) for t in NOT_WIDER])
def test_what_no_wider_type_holds_leaves_the_table_as_it_is(home: Path, type_: pa.DataType, old: Any, new: Any) -> None:
    write_deltalake(home / "t", pa.table({"small": pa.array([1], pa.int32()), "n": pa.array([old], type_)}))
    with pytest.raises(DoesNotFit, match="field 'n'"):
        # Not even for the other value, which a wider type holds, as no row of this write is there
        evolving().write(rows({"n": new, "small": WIDE}))
    assert (DeltaTable(home / "t").version(), type_of(home)) == (0, type_)


def test_everything_else_of_the_table_stays(home: Path) -> None:
    # Given a table with all that a table may have
    types = pa.schema(
        [
            pa.field("n", pa.int32(), nullable=False, metadata={"comment": "the number"}),
            pa.field("o", pa.struct([pa.field("f", pa.float32(), nullable=False), pa.field("s", pa.string())])),
            pa.field("m", pa.map_(pa.string(), pa.string())),
            pa.field("day", pa.int32()),
            pa.field("kind", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("local", pa.timestamp("us")),
            pa.field("raw", pa.binary()),
        ]
    )
    first = {
        "n": [1, 2, 3],
        "o": [{"f": 0.5, "s": "x"}, None, {"f": 1.0, "s": None}],
        "m": [[("a", "b")], [], None],
        "day": [3, None, 4],
        "kind": ["a b/c", "", "ü"],
        "at": [0, None, 1],
        "local": [5, None, 6],
        "raw": [b"\0", b"", None],
    }
    write_deltalake(
        home / "t",
        pa.table(first, schema=types),
        partition_by=["day", "kind"],
        name="a name",
        description="words",
        configuration={"delta.logRetentionDuration": "interval 90 days", "delta.checkpointInterval": "7"},
    )
    DeltaTable(home / "t").alter.add_constraint({"positive": "n > 0"})
    mark = CommitProperties(app_transactions=[Transaction("another/program", 7)])
    write_deltalake(home / "t", pa.table(first, schema=types), mode="append", commit_properties=mark)
    before, rows_before = DeltaTable(home / "t"), DeltaTable(home / "t").to_pyarrow_table().to_pylist()
    # When columns of it are widened, one of them of a partition
    evolving().write(rows({"n": WIDE, "day": WIDE, "kind": "new"}, numbered=False))
    # Then nothing else has changed
    after = DeltaTable(home / "t")
    for name in ("id", "name", "description", "partition_columns", "created_time", "configuration"):
        assert getattr(after.metadata(), name) == getattr(before.metadata(), name), name
    versions = lambda table: (table.protocol()[:2], *map(sorted, table.protocol()[2:]))  # noqa: E731
    assert versions(after) == versions(before)
    assert after.transaction_version("another/program") == 7
    wider = [field.with_type(pa.int64()) if field.name in ("n", "day") else field for field in types]
    assert pa.schema(after.schema().to_arrow()).equals(pa.schema(wider), check_metadata=True)
    found = after.to_pyarrow_table().to_pylist()
    assert [row["kind"] for row in found if row["n"] == WIDE] == ["new"]
    by = lambda row: repr(sorted(row.items()))  # noqa: E731
    assert sorted((row for row in found if row["n"] != WIDE), key=by) == sorted(rows_before, key=by)
    # And the constraint holds
    with pytest.raises(Refused, match="a constraint of the table"):
        evolving().write(rows({"n": -1}, numbered=False))


@pytest.mark.proves("B8", "O5")
def test_a_write_that_comes_again_after_the_table_was_written_anew_is_left_out(home: Path) -> None:
    table_of(home)
    out = evolving()
    out.write(rows({"n": 3}))
    out.write(rows({"n": 3}, {"n": WIDE}))
    out.write(rows({"n": 3}, {"n": WIDE}, {"n": WIDE + 1}))
    evolving().write(rows({"n": 3}, {"n": WIDE}, {"n": WIDE + 1}))
    assert held(home) == [1, 2, 3, WIDE, WIDE + 1]
    # A checkpoint keeps the numbers, too
    DeltaTable(home / "t").create_checkpoint()
    evolving().write(rows({"n": 3}, {"n": WIDE}, {"n": WIDE + 1}))
    assert held(home) == [1, 2, 3, WIDE, WIDE + 1]


KILLED = """
import os, signal, sys
import deltalake, numpy as np, pyarrow as pa
from conduit_tasks.connectors.delta.connector import DeltaDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch

write = deltalake.write_deltalake

def cut(reader):
    yield from reader
    os.kill(os.getpid(), signal.SIGKILL)

def dies(table, data, *, mode, **more):
    if mode == "append":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "within":
        data = pa.RecordBatchReader.from_batches(data.schema, cut(data))
    write(table, data, mode=mode, **more)

deltalake.write_deltalake = dies
records = [Record(b"k", after={"n": n}, origin=Origin("p", "in", "")) for n in (3, 2**40)]
out = DeltaDestination({"path": "t", "schema": "evolve"})
out.open(None)
numbers = RowNumbers("p", "lake", 0, np.arange(1, 3))
out.write(Rows(spool_batch([0, 0], [1, 2], records), [Origin("p", "in", "")], 1, 1, 2, numbers))
"""


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize(("at", "version", "type_"), [("within", 1, pa.int32()), ("between", 2, pa.int64())])
def test_a_crash_leaves_the_table_as_it_was_or_wider_and_nothing_is_lost_or_there_twice(
    home: Path, at: str, version: int, type_: pa.DataType
) -> None:
    table_of(home)
    out = evolving()
    out.write(rows({"n": 3}))
    ended = subprocess.run([sys.executable, "-c", KILLED, at], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert (DeltaTable(home / "t").version(), type_of(home), held(home)) == (version, type_, [1, 2, 3])
    evolving().write(rows({"n": 3}, {"n": WIDE}))
    assert held(home) == [1, 2, 3, WIDE]


def others_first(monkeypatch: pytest.MonkeyPatch, times: int, commit: Callable[[], None]) -> list[int]:
    """Has another program commit after the rows were read, and before the table that is rewritten is committed."""
    batches, tries = widen._batches, [0]

    def before(*given: Any) -> Any:
        yield from batches(*given)
        tries[0] += 1
        if tries[0] <= times:
            commit()

    monkeypatch.setattr(widen, "_batches", before)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return tries


@pytest.mark.proves("B8", "C6")
@pytest.mark.parametrize("what", ["append", "delete", "widen", "column"])
def test_what_others_commit_meanwhile_is_not_lost(home: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    table_of(home)
    narrow = pa.table({"n": pa.array([5], pa.int32()), "v": ["x"]})
    more = pa.table({"n": pa.array([5], pa.int32()), "more": ["x"]})
    commits: dict[str, Callable[[], Any]] = {
        "append": lambda: write_deltalake(home / "t", narrow, mode="append"),
        "delete": lambda: DeltaTable(home / "t").delete("n = 1"),
        "widen": lambda: evolving().write(rows({"n": WIDE - 1}, numbered=False)),
        "column": lambda: write_deltalake(home / "t", more, mode="append", schema_mode="merge"),
    }
    tries = others_first(monkeypatch, 1, commits[what])
    evolving().write(rows({"n": WIDE}))
    wanted = {"append": [1, 2, 5], "column": [1, 2, 5], "delete": [2], "widen": [1, 2, WIDE - 1]}[what]
    assert held(home) == [*wanted, WIDE]
    assert tries[0] == 2


def test_a_table_that_others_change_each_time_stays_as_it_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_of(home)
    narrow = pa.table({"n": pa.array([5], pa.int32()), "v": ["x"]})
    tries = others_first(monkeypatch, 100, lambda: write_deltalake(home / "t", narrow, mode="append"))
    out = evolving()
    for _ in range(2):  # as for each half of the rows
        with pytest.raises(DoesNotFit, match=r"field 'n' .* not rewritten .* others changed it each time"):
            out.write(rows({"n": WIDE}))
    assert tries[0] == widen.TIMES
    assert (held(home), type_of(home)) == ([1, 2, 5, 5, 5], pa.int32())
    out.write(rows({"n": 6}))


@pytest.mark.proves("B8")
def test_a_commit_of_another_task_that_read_the_narrow_table_is_made_again(home: Path) -> None:
    """Given tasks of one micro-batch that write beside each other (`parallelism`), when one has the table rewritten,
    then the commits that the others have under way are made again, in the wider type."""
    table_of(home)
    tasks = []
    for n in range(2):
        out = evolving()
        out.pipeline, out.connector, out.shard = "p", "lake", ShardName("k", 2, n)
        out.open(None)
        tasks.append(out)
    write = lambda out, n, seq: out.write(shard_rows(rows({"n": n}, first=seq, numbered=False)))  # noqa: E731
    write(tasks[0], WIDE, 1)
    write(tasks[1], 3, 2)
    write(tasks[1], WIDE + 1, 3)
    write(tasks[0], 4, 4)
    for out in tasks:  # each comes again
        out.open(None)
    write(tasks[1], WIDE + 1, 3)
    write(tasks[0], 4, 4)
    assert held(home) == [1, 2, 3, 4, WIDE, WIDE + 1]


def shard_rows(made: Rows) -> Rows:
    return replace(made, seal=9, seqs=np.arange(made.first, made.last + 1))


@pytest.mark.proves("C6")
@pytest.mark.parametrize("size", ["0", "10B", "1GiB"])
def test_a_table_is_written_anew_up_to_a_size(home: Path, size: str) -> None:
    table_of(home)
    out = evolving(rewrite_up_to=size)
    if size == "1GiB":
        out.write(rows({"n": WIDE}))
        assert held(home) == [1, 2, WIDE]
        return
    with pytest.raises(DoesNotFit, match=r"field 'n' is no int32.* not rewritten .*rewrite-up-to is .*raise"):
        out.write(rows({"n": WIDE}))
    out.write(rows({"n": 3}))
    assert (held(home), type_of(home)) == ([1, 2, 3], pa.int32())


def test_the_size_is_checked(home: Path) -> None:
    with pytest.raises(ConfigError, match="rewrite-up-to"):
        destination(schema="evolve", rewrite_up_to="much")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"configuration": {"delta.appendOnly": "true"}}, "appended to"),
        ({"configuration": {"delta.enableChangeDataFeed": "true"}}, "change data feed"),
        ({"configuration": {"delta.columnMapping.mode": "name"}}, "maps its columns"),
        ({"configuration": {"delta.enableDeletionVectors": "true"}}, r"has features \(deletionVectors"),
    ],
    ids=str,
)
def test_a_table_that_would_lose_something_is_not_written_anew(home: Path, made: Any, said: str) -> None:
    types = pa.schema([pa.field("n", pa.int32()), pa.field("v", pa.string())])
    try:
        DeltaTable.create(home / "t", types, **made)
    except deltalake.exceptions.DeltaError as error:
        pytest.skip(str(error))
    with pytest.raises(DoesNotFit, match=rf"field 'n' .* not rewritten .*{said}"):
        evolving().write(rows({"n": WIDE}))
    assert type_of(home) == pa.int32()


def test_a_table_of_many_partitions_is_not_written_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widen, "MOST_PARTITIONS", 2)
    for n in range(3):
        one = pa.table({"n": pa.array([n], pa.int32()), "day": [f"d{n}"]})
        write_deltalake(home / "t", one, mode="append", partition_by=["day"])
        if n == 1:
            evolving().write(rows({"n": WIDE, "day": "d0"}, numbered=False))
            assert type_of(home) == pa.int64()
            DeltaTable(home / "t").restore(1)
    with pytest.raises(DoesNotFit, match="more than 2 partitions"):
        evolving().write(rows({"n": WIDE, "day": "d0"}, numbered=False))


def test_a_task_that_lost_its_lease_meanwhile_writes_nothing(home: Path) -> None:
    table_of(home)
    calls = 0

    def lost() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # when the rows are written
            raise Fenced("the lease is lost")

    out = evolving()
    out.still_ours = lost
    with pytest.raises(Fenced):
        out.write(rows({"n": WIDE}))
    assert (calls, DeltaTable(home / "t").version(), held(home)) == (2, 0, [1, 2])


def test_a_table_that_takes_too_long_stays_as_it_is(home: Path) -> None:
    table_of(home)
    out = evolving()
    out.limit = 0.0
    for _ in range(2):
        with pytest.raises(DoesNotFit, match=r"it takes too long; raise delivery\.timeout"):
            out.write(rows({"n": WIDE}))
    assert DeltaTable(home / "t").version() == 0


def test_a_read_that_does_not_end_stops_within_the_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table_of(home)
    end = threading.Event()

    def hangs(*_: Any) -> Any:
        yield from ()
        end.wait(60)

    monkeypatch.setattr(widen, "_batches", hangs)
    monkeypatch.setattr(widen, "STOP", 0.1)
    out = evolving()
    out.limit = 1.0
    with pytest.raises(DoesNotFit, match="it takes too long"):
        out.write(rows({"n": WIDE}))
    end.set()
    assert DeltaTable(home / "t").version() == 0


def test_a_file_that_cannot_be_read_is_an_error_that_may_pass(home: Path) -> None:
    table_of(home)
    out = evolving()
    next((home / "t").glob("*.parquet")).unlink()
    with pytest.raises(Unavailable, match="cannot be rewritten"):
        out.write(rows({"n": WIDE}))
    assert DeltaTable(home / "t").version() == 0


def test_rows_that_break_a_constraint_of_the_table_keep_it_as_it_is(home: Path) -> None:
    """Given a row that came before its constraint (here: by a commit that says nothing of it)."""
    table_of(home)
    DeltaTable(home / "t").alter.set_table_properties({"delta.constraints.c": "n > 1"}, False)
    protocol = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 3}}
    (home / "t" / "_delta_log" / f"{2:020}.json").write_text(json.dumps(protocol))
    with pytest.raises(DoesNotFit, match="rows that it has break a constraint"):
        evolving().write(rows({"n": WIDE}))
    assert DeltaTable(home / "t").version() == 2


@pytest.mark.proves("C9")
def test_a_source_takes_a_table_that_was_written_anew_for_nothing_new(home: Path) -> None:
    table_of(home)
    source = DeltaSource({"path": "t", "key": "n"})
    records, position = read_all(source, {})
    evolving().write(rows({"n": WIDE}))
    more, position = read_all(source, position)
    assert (sorted(numbers_of(records)), numbers_of(more)) == ([1, 2], [WIDE])
    assert position[""]["version"] == 3
