"""New columns of a Delta table, and nothing else of it changed (`schema: merge` or `evolve`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.schema import ArrayType, MapType, StructType

from conduit_tasks.connectors.delta.connector import DeltaDestination, DeltaSource
from conduit_tasks.connectors.rows import Rows, ShardName
from conduit_tasks.errors import DoesNotFit, Fenced, Refused
from tests.connectors.test_delta import destination, numbers_of, read_all, rows

FIELDS = [
    Field("day", "string", nullable=False, metadata={"comment": "of the partition"}),
    Field("n", "long", nullable=False, metadata={"comment": "the number"}),
    Field("o", StructType([Field("a", "long", nullable=False, metadata={"comment": "within"}), Field("b", "string")])),
    Field("l", ArrayType(StructType([Field("x", "long", nullable=False)]), contains_null=False)),
    Field("m", MapType("string", "long", value_contains_null=False)),
    Field("small", "short", metadata={"comment": "a small one", "other": "words"}),
]


def table_of(home: Path, fields: list[Field] = FIELDS) -> None:
    """Makes an empty table with all that a table may have."""
    DeltaTable.create(
        home / "t",
        Schema(fields),
        partition_by=["day"],
        name="a name",
        description="words",
        configuration={"delta.logRetentionDuration": "interval 90 days", "delta.checkpointInterval": "7"},
    ).alter.add_constraint({"positive": "n > 0"})


def opened(**settings: str) -> DeltaDestination:
    out = destination(**settings)
    out.open(None)
    return out


def fields_of(home: Path) -> list[Field]:
    return DeltaTable(home / "t").schema().fields


def properties_of(home: Path) -> Any:
    table = DeltaTable(home / "t")
    protocol, of = table.protocol(), table.metadata()
    return of.id, of.name, of.description, of.partition_columns, of.created_time, of.configuration, protocol[:2]


def held(home: Path) -> list[dict[str, Any]]:
    found = DeltaTable(home / "t").to_pyarrow_table().to_pylist()
    plain = [{name: value for name, value in row.items() if value is not None} for row in found]
    return sorted(plain, key=lambda row: int(row["n"]))


FIRST = {"n": 1, "day": "a", "o": {"a": 1}, "l": [{"x": 1}], "small": 7}


@pytest.mark.parametrize("schema", ["merge", "evolve", "freeze", "quarantine"])
def test_rows_leave_the_columns_as_they_are(home: Path, schema: str) -> None:
    table_of(home)
    before = properties_of(home)
    out = opened(schema=schema)
    out.write(rows(FIRST, {"n": 2, "day": "b"}, numbered=False))
    assert (fields_of(home), properties_of(home)) == (FIELDS, before)
    # And what the table requires is required
    for without in ({"n": None}, {"o": {"b": "x"}}, {"o": {"a": None}}, {"l": [None]}, {"l": [{"x": None}]}):
        with pytest.raises(DoesNotFit, match=f"field '{next(iter(without))}'"):
            out.write(rows({"n": 3, "day": "a", **without}, numbered=False))
    with pytest.raises(Refused, match="a constraint of the table"):
        out.write(rows({"n": -1, "day": "a"}, numbered=False))
    assert [row["n"] for row in held(home)] == [1, 2]


@pytest.mark.parametrize("schema", ["merge", "evolve"])
def test_new_columns_stand_behind_the_others_and_nothing_else_of_the_table_changes(home: Path, schema: str) -> None:
    table_of(home)
    mark = CommitProperties(app_transactions=[Transaction("another/program", 7)])
    DeltaTable(home / "t").alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "3"}, commit_properties=mark)
    before = properties_of(home)
    new = {
        "n": 2,
        "day": "b",
        "o": {"a": 2, "c": {"d": True}},
        "l": [{"x": 2, "y": [1.5]}],
        "more": "x",
        "p": [{"q": 1}],
    }
    opened(schema=schema).write(rows(FIRST, new, numbered=False))
    within = [*FIELDS[2].type.fields, Field("c", StructType([Field("d", "boolean")]))]
    element = [*FIELDS[3].type.element_type.fields, Field("y", ArrayType("double", contains_null=True))]
    assert fields_of(home) == [
        *FIELDS[:2],
        Field("o", StructType(within)),
        Field("l", ArrayType(StructType(element), contains_null=False)),
        *FIELDS[4:],
        Field("more", "string"),
        Field("p", ArrayType(StructType([Field("q", "long")]), contains_null=True)),
    ]
    assert properties_of(home) == before
    assert DeltaTable(home / "t").transaction_version("another/program") == 7
    first = {**FIRST, "o": {"a": 1, "b": None, "c": None}, "l": [{"x": 1, "y": None}]}
    assert held(home) == [first, {**new, "o": {"a": 2, "b": None, "c": {"d": True}}}]


def test_a_new_field_within_a_column_that_is_required_leaves_it_required(home: Path) -> None:
    there = [
        Field("n", "long"),
        Field("o", StructType([Field("a", "long")]), nullable=False, metadata={"comment": "words"}),
        Field("day", "string"),
    ]
    table_of(home, there)
    opened().write(rows({"n": 1, "o": {"a": 1, "b": 2}}, numbered=False))
    wide = Field(
        "o", StructType([Field("a", "long"), Field("b", "long")]), nullable=False, metadata={"comment": "words"}
    )
    assert fields_of(home) == [there[0], wide, there[2]]


def test_a_column_without_a_type_gets_one_and_the_others_stay_as_they_are(home: Path) -> None:
    """Given a column that another program left without a type (`void`)."""
    types = [pa.field("n", pa.int64(), nullable=False), pa.field("o", pa.struct([("a", pa.int32()), ("z", pa.null())]))]
    write_deltalake(home / "t", pa.schema(types).empty_table())
    opened().write(rows({"n": 1, "o": {"z": "x"}, "more": 1}, numbered=False))
    o = StructType([Field("a", "integer"), Field("z", "string")])
    assert fields_of(home) == [Field("n", "long", nullable=False), Field("o", o), Field("more", "long")]
    assert held(home) == [{"n": 1, "o": {"a": None, "z": "x"}, "more": 1}]


def test_a_column_that_the_table_makes_by_a_rule_is_made(home: Path) -> None:
    made = Field("twice", "long", nullable=False, metadata={"delta.generationExpression": "n * 2"})
    DeltaTable.create(home / "t", Schema([Field("n", "long"), made]))
    out = opened()
    out.write(rows({"n": 1}, {"n": 2, "more": "x"}, numbered=False))
    out.write(rows({"n": 3, "twice": 6}, numbered=False))
    with pytest.raises(Refused, match="a constraint of the table"):
        out.write(rows({"n": 4, "twice": 7}, numbered=False))
    assert held(home) == [{"n": 1, "twice": 2}, {"n": 2, "twice": 4, "more": "x"}, {"n": 3, "twice": 6}]
    assert fields_of(home)[1] == made


def test_a_table_that_is_made_wider_and_gets_a_column_has_both(home: Path) -> None:
    table_of(home, [Field("day", "string"), Field("n", "integer", nullable=False, metadata={"comment": "words"})])
    opened(schema="evolve").write(rows({"n": 2**40, "day": "a", "more": True}, numbered=False))
    wide = Field("n", "long", nullable=False, metadata={"comment": "words"})
    assert fields_of(home) == [Field("day", "string"), wide, Field("more", "boolean")]
    assert held(home) == [{"n": 2**40, "day": "a", "more": True}]


def shards(count: int, **settings: str) -> list[DeltaDestination]:
    made = []
    for n in range(count):
        out = destination(**settings)
        out.pipeline, out.connector, out.shard = "p", "lake", ShardName("k", count, n)
        out.open(None)
        made.append(out)
    return made


def of_shard(seq: int, *payloads: Any) -> Rows:
    given = rows(*payloads, first=seq, numbered=False)
    return replace(given, seal=9, seqs=np.arange(given.first, given.last + 1))


@pytest.mark.proves("B8")
@pytest.mark.parametrize("other", ["same", "another", "type"])
def test_tasks_that_add_columns_at_the_same_moment_add_each_once(home: Path, other: str) -> None:
    table_of(home)
    one, two = shards(2)
    # Given two tasks that have read the same table, when both bring a column that is not there
    one.write(of_shard(1, {"n": 1, "day": "a", "more": 1}))
    new = {"same": {"more": 2}, "another": {"also": 2}, "type": {"more": "words"}}[other]
    row = {"n": 2, "day": "a", **new}
    if other == "type":
        # Then the first one gives the type, and what does not fit it is a letter
        with pytest.raises(DoesNotFit, match="field 'more'"):
            two.write(of_shard(2, row))
        assert held(home) == [{"n": 1, "day": "a", "more": 1}]
        return
    two.write(of_shard(2, row))
    # Then both are there once, and so are the rows, also if they come again
    for out in shards(2):
        out.write(of_shard(out.shard.number + 1, *([held(home)[out.shard.number]])))
    assert held(home) == [{"n": 1, "day": "a", "more": 1}, row]
    assert fields_of(home) == [*FIELDS, Field("more", "long"), *([Field("also", "long")] if other == "another" else [])]


@pytest.mark.proves("B8", "O5")
@pytest.mark.parametrize("by", ["numbers", "shard"])
def test_rows_that_another_attempt_wrote_before_the_new_column_are_not_written_again(home: Path, by: str) -> None:
    """Given two attempts at one write that have read the same table, of which one reads records that bring a column."""
    table_of(home)
    one, two = [shards(1)[0] for _ in range(2)] if by == "shard" else [opened(), opened()]
    given = (lambda *payloads: of_shard(1, *payloads)) if by == "shard" else rows
    first, second = {"n": 1, "day": "a"}, {"n": 2, "day": "a", "more": 1}
    one.write(given(first))
    # When the other adds it on top of the first one's commit
    two.write(given(first, second))
    assert held(home) == [first, second]


KILLED = """
import os, signal
from conduit_tasks.connectors.delta import destination
from conduit_tasks.connectors.delta.connector import DeltaDestination
from conduit_tasks.connectors.rows import RowNumbers, Rows
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
import numpy as np

add = destination.add

def dies(table, fields):
    add(table, fields)
    os.kill(os.getpid(), signal.SIGKILL)

destination.add = dies
record = Record(b"k", after={"n": 2, "day": "b", "more": 1}, origin=Origin("p", "in", ""))
out = DeltaDestination({"path": "t"})
out.open(None)
numbers = RowNumbers("p", "lake", 0, np.arange(2, 3))
out.write(Rows(spool_batch([0], [2], [record]), [Origin("p", "in", "")], 1, 2, 2, numbers))
"""


@pytest.mark.proves("B8", "O5")
def test_a_crash_between_the_column_and_the_rows_leaves_nothing_out_and_nothing_twice(home: Path) -> None:
    table_of(home)
    first, second = {"n": 1, "day": "a"}, {"n": 2, "day": "b", "more": 1}
    opened().write(rows(first))
    ended = subprocess.run([sys.executable, "-c", KILLED], check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    assert (fields_of(home), held(home)) == ([*FIELDS, Field("more", "long")], [first])
    for _ in range(2):
        opened().write(rows(first, second))
        assert held(home) == [first, second]


WRITES = """
import sys
from conduit_tasks.connectors.delta.connector import DeltaDestination
from conduit_tasks.connectors.rows import Rows, ShardName
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
import numpy as np

me = int(sys.argv[1])
out = DeltaDestination({"path": "t"})
out.pipeline, out.connector, out.shard = "p", "lake", ShardName("k", 2, me)
out.open(None)
print("ready", flush=True)
sys.stdin.readline()
for n in range(1, 6):
    # A column that both bring at the same moment, and one of its own
    after = {"n": 10 * me + n, "day": "a", f"both{n}": n, f"of{me}_{n}": "x"}
    record = Record(b"k", after=after, origin=Origin("p", "in", ""))
    batch = spool_batch([0], [n], [record])
    out.write(Rows(batch, [Origin("p", "in", "")], 1, n, n, None, seal=9, seqs=np.arange(n, n + 1)))
"""


@pytest.mark.proves("B8")
def test_processes_that_add_columns_beside_each_other_lose_none(home: Path) -> None:
    table_of(home)
    started = [
        subprocess.Popen([sys.executable, "-c", WRITES, str(n)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for n in (0, 1)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in started:
        process.communicate(timeout=240)
        assert process.returncode == 0
    wanted = [(10 * me + n, me, n) for me in (0, 1) for n in range(1, 6)]
    assert held(home) == [{"n": k, "day": "a", f"both{n}": n, f"of{me}_{n}": "x"} for k, me, n in wanted]
    found = fields_of(home)
    names = [f"both{n}" for n in range(1, 6)] + [f"of{me}_{n}" for me in (0, 1) for n in range(1, 6)]
    assert (found[: len(FIELDS)], sorted(field.name for field in found[len(FIELDS) :])) == (FIELDS, sorted(names))


def test_a_task_that_lost_its_lease_adds_no_column(home: Path) -> None:
    table_of(home)
    version = DeltaTable(home / "t").version()

    def lost() -> None:
        raise Fenced("the lease is lost")

    out = opened()
    out.still_ours = lost
    with pytest.raises(Fenced):
        out.write(rows({"n": 1, "day": "a", "more": 1}))
    assert DeltaTable(home / "t").version() == version


@pytest.mark.proves("C9")
def test_a_source_takes_a_new_column_for_no_record(home: Path) -> None:
    table_of(home)
    opened().write(rows({"n": 1, "day": "a"}, numbered=False))
    source = DeltaSource({"path": "t", "key": "n"})
    records, position = read_all(source, {})
    opened().write(rows({"n": 2, "day": "a", "more": 1}, numbered=False))
    more, _ = read_all(source, position)
    assert (numbers_of(records), numbers_of(more)) == ([1], [2])


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"c\0d": 1}, "holds a NUL"),
        ({"o": {"a": 1, "c\0d": 1}}, "holds a NUL"),
        ({"N": 1}, "'n' and 'N' differ in case only"),
        ({"o": {"a": 1, "A": 1}}, "'a' and 'A' differ in case only"),
        ({"q": 1, "Q": 1}, "'q' and 'Q' differ in case only"),
    ],
)
def test_a_name_that_no_column_can_have_is_refused_and_the_table_stays_as_it_is(
    home: Path, record: dict[str, Any], says: str
) -> None:
    table_of(home)
    out, before = opened(), fields_of(home)
    with pytest.raises(Refused, match=says):
        out.write(rows({"day": "x", "n": 1, **record}))
    assert fields_of(home) == before
