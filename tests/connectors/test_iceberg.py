"""Iceberg tables of a SQL catalog (a SQLite file) and of a REST catalog (the own server of Iceberg), their files in a
folder: written here, read by pyiceberg."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.connectors.iceberg.commit import Commit
from conduit_tasks.connectors.iceberg.connector import IcebergDestination
from conduit_tasks.connectors.rows import ShardName
from conduit_tasks.errors import Fenced, Refused, Unavailable
from tests.connectors.iceberg_lake import SQL, Lake
from tests.connectors.test_delta import rows
from tests.connectors.test_shard_files import rows as rows_of_shard

pytestmark = pytest.mark.xdist_group("iceberg")


@pytest.mark.parametrize("more", [{}, {"mode": "upsert", "key": "id"}])
def test_the_connector_keeps_its_contract(either: Lake, more: dict[str, str]) -> None:
    report = accept("iceberg", destination={**either.settings, **more}, read_back=either.rows)
    report.require()
    assert [check.name for check in report.checks if not check.passed] == []


@pytest.mark.proves("B8", "O5")
def test_a_write_that_comes_again_is_left_out_also_by_another_process(either: Lake) -> None:
    one = either.destination()
    one.write(rows({"n": 1}, {"n": 2}))
    one.write(rows({"n": 2}, {"n": 3}, first=2))
    other = either.destination()
    other.write(rows({"n": 1}, {"n": 2}, {"n": 3}, {"n": 4}))
    assert either.numbers() == [1, 2, 3, 4]
    # A redrive is another epoch
    other.write(rows({"n": 1}, epoch=1))
    assert either.numbers() == [1, 1, 2, 3, 4]
    # And a snapshot says whose it is, and up to where
    snapshot = either.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["conduit/p/lake/1"] == "1"


@pytest.mark.proves("B8", "I4")
def test_of_two_writers_of_one_destination_one_commits(either: Lake) -> None:
    """Given two that have the table as it was, and write the same rows, then the later one finds that they are there,
    although nothing that it looked at before said so; and one without the lease writes nothing."""
    either.destination().write(rows({"n": 0}, numbered=False))
    one, other = either.destination(), either.destination()
    one.write(rows({"n": 1}, {"n": 2}))
    other.write(rows({"n": 1}, {"n": 2}, {"n": 3}))
    assert either.numbers() == [0, 1, 2, 3]

    def lost() -> None:
        raise Fenced("the lease is lost")

    other.still_ours = lost
    with pytest.raises(Fenced):
        other.write(rows({"n": 4}, first=4))
    assert either.numbers() == [0, 1, 2, 3]


@pytest.mark.proves("I4")
def test_a_writer_that_loses_its_lease_while_others_come_first_writes_nothing_more(lake: Lake) -> None:
    lake.destination().write(rows({"n": 0}, numbered=False))
    one, other = lake.destination(), lake.destination()
    asked: list[int] = []

    def lost_later() -> None:
        asked.append(1)
        if len(asked) > 1:
            raise Fenced("the lease is lost")

    other.still_ours = lost_later
    one.write(rows({"n": 1}, numbered=False))
    with pytest.raises(Fenced):
        other.write(rows({"n": 2}, numbered=False))
    assert lake.numbers() == [0, 1]


@pytest.mark.proves("B8", "O5")
def test_two_writers_that_saw_no_table_write_its_first_rows_once(either: Lake) -> None:
    one, other = either.destination(partition_by="day"), either.destination(partition_by="day")
    one.write(rows({"n": 1, "day": "a"}, {"n": 2, "day": "b"}))
    other.write(rows({"n": 1, "day": "a"}, {"n": 2, "day": "b"}, {"n": 3, "day": "b"}))
    assert either.numbers() == [1, 2, 3]
    assert [field.name for field in either.table.spec().fields] == ["day"]


@pytest.mark.proves("B8")
def test_maintenance_and_other_programs_do_not_have_rows_written_twice(either: Lake) -> None:
    """Given a commit, one of another program behind it, and a table whose older snapshots are expired, then the rows of
    the first commit are left out when they come again."""
    either.destination().write(rows({"n": 1}, {"n": 2}))
    table = either.table
    ours = table.current_snapshot()
    assert ours is not None
    table.append(pa.table({"n": [10]}))
    table.maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
    assert [snapshot.snapshot_id for snapshot in either.table.snapshots()] != [ours.snapshot_id]
    assert len(either.table.snapshots()) == 1
    either.destination().write(rows({"n": 1}, {"n": 2}, {"n": 3}))
    assert either.numbers() == [1, 2, 3, 10]


@pytest.mark.proves("B8", "C10")
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_commit_whose_answer_was_lost_is_not_made_again(
    either: Lake, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a connection that breaks when the catalog has committed, then the next attempt leaves the rows out."""
    out = either.destination(mode=mode, **({"key": "n"} if mode == "upsert" else {}))
    out.write(rows({"n": 1}))
    real = Commit.commit_transaction

    def lost(self: Commit) -> Any:
        real(self)
        raise OSError("connection reset")

    monkeypatch.setattr(Commit, "commit_transaction", lost)
    with pytest.raises(Unavailable, match="connection reset"):
        out.write(rows({"n": 2}, first=2))
    monkeypatch.undo()
    before = either.table.metadata_location
    out.open(None)
    out.write(rows({"n": 2}, first=2))
    assert (either.numbers(), either.table.metadata_location) == ([1, 2], before)


def test_writers_that_come_first_again_and_again_are_waited_for_and_nothing_is_lost(lake: Lake) -> None:
    """Given three writers of their own destinations, each with three commits, and columns of their own."""
    lake.destination().write(rows({"n": 0}, numbered=False))
    failed: list[BaseException] = []

    def write(number: int, out: IcebergDestination) -> None:
        try:
            for n in range(3):
                out.write(rows({"n": 3 * number + n + 1, f"c{number}": n}, numbered=False))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number, lake.destination())) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert lake.numbers() == list(range(10))


def test_a_table_that_lets_the_library_try_once_is_looked_at_again_here(lake: Lake) -> None:
    settings = {"properties.commit.retry.num-retries": "0"}
    lake.destination(**settings).write(rows({"n": 0}, numbered=False))
    one, other = lake.destination(), lake.destination()
    one.write(rows({"n": 1}))
    other.write(rows({"n": 1}, {"n": 2}))
    assert lake.numbers() == [0, 1, 2]


def test_new_fields_become_columns_or_are_refused_and_values_of_other_types_are(lake: Lake) -> None:
    out = lake.destination()
    out.write(rows({"n": 1, "none": None}, numbered=False))
    out.write(rows({"n": 2, "more": {"a": [{"b": 1}]}, "empty": []}, numbered=False))
    out.write(rows({"n": 3, "more": {"a": [{"b": 2, "c": "x"}], "d": True}, "none": 1.5}, numbered=False))
    assert sorted(lake.rows(), key=lambda row: row["n"]) == [
        {"n": 1, "more": None, "none": None},
        {"n": 2, "more": {"a": [{"b": 1, "c": None}], "d": None}, "none": None},
        {"n": 3, "more": {"a": [{"b": 2, "c": "x"}], "d": True}, "none": 1.5},
    ]
    fixed = lake.destination(schema="fixed")
    for payload, said in (({"n": 3, "other": 1}, "no column 'other'"), ({"more": {"e": 1}}, "no column 'more.e'")):
        with pytest.raises(Refused, match=said):
            fixed.write(rows(payload, numbered=False))
    fixed.write(rows({"n": 4, "other": None}, numbered=False))
    for payload, said in (
        ({"n": "text"}, "field 'n' is no int64"),
        ({"n": {"a": 1}}, "field 'n'"),
        (b"raw", "no row"),
        ({"x": None}, "no field"),
        ({"N": 1}, "differ in case only"),
        ({"big": 2**63}, "too large"),
        ({"more": {"A": 1}}, "differ in case only"),
    ):
        with pytest.raises(Refused, match=said):
            out.write(rows(payload, numbered=False))
    assert lake.numbers() == [1, 2, 3, 4]


def test_values_take_the_types_of_a_table_that_is_there(lake: Lake) -> None:
    """Given a table of a lakehouse, of types that JSON does not have, then values fit or are refused."""
    schema = pa.schema(
        [
            pa.field("n", pa.int32(), nullable=False),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("day", pa.date32()),
            pa.field("paid", pa.list_(pa.struct([pa.field("sum", pa.decimal128(10, 2)), pa.field("by", pa.string())]))),
        ]
    )
    lake.catalog.create_namespace("lake")
    lake.catalog.create_table("lake.t", schema)
    out = lake.destination()
    out.write(rows({"n": 1, "price": 3, "at": "2026-01-02T03:04:05+01:00", "day": "2026-01-02"}, numbered=False))
    out.write(rows({"n": 2, "price": "12.30"}, {"n": 3, "price": "0.1"}, numbered=False))
    out.write(rows({"n": 4, "price": 2.5, "paid": [{"sum": 1.5, "by": "card"}, {"sum": 1}, None]}, numbered=False))
    found = {row["n"]: row for row in lake.rows()}
    assert [str(found[n]["price"]) for n in range(1, 5)] == ["3.00", "12.30", "0.10", "2.50"]
    assert (found[1]["at"].isoformat(), str(found[1]["day"])) == ("2026-01-02T02:04:05+00:00", "2026-01-02")
    assert [each and (str(each["sum"]), each["by"]) for each in found[4]["paid"]] == [
        ("1.50", "card"),
        ("1.00", None),
        None,
    ]
    for payload in ({"price": 1}, {"n": None, "price": 1}):
        with pytest.raises(Refused, match="field 'n' has no value"):
            out.write(rows(payload, numbered=False))
    for payload in (
        {"n": 5, "price": 1.555},
        {"n": 5, "paid": [{"sum": 0.001}]},
        {"n": 5, "at": "yesterday"},
        {"n": 2**40},
    ):
        with pytest.raises(Refused, match="as the column is"):
            out.write(rows(payload, numbered=False))
    assert lake.numbers() == [1, 2, 3, 4]


def test_whole_records_are_rows_of_fixed_columns(lake: Lake) -> None:
    lake.destination(rows="opencdc").write(rows(b"raw", {"n": 1}, numbered=False))
    assert [(row["operation"], row["after"]) for row in lake.rows()] == [("create", '"raw"'), ("create", '{"n":1}')]


def test_a_new_table_has_the_properties_that_the_file_names(lake: Lake) -> None:
    out = lake.destination(table="a.b.t", **{"properties.write.metadata.previous-versions-max": "5"})
    out.write(rows({"n": 1}))
    made = lake.catalog.load_table("a.b.t")
    assert made.properties["write.metadata.previous-versions-max"] == "5"
    assert made.properties["conduit/p/lake/0"] == "1"


# -- several tasks -------------------------------------------------------------------------------------------------


def of_shard(number: int) -> ShardName:
    return ShardName("key", 3, number)


@pytest.mark.proves("C10", "I4")
def test_a_commit_of_a_shard_that_was_made_and_not_confirmed_is_not_made_again(lake: Lake) -> None:
    """Given commits of two shards, then the same rows come again, others behind them, and the next micro-batch."""
    one, other = lake.destination(of_shard(0)), lake.destination(of_shard(1))
    one.write(rows_of_shard(0, 3))
    other.write(rows_of_shard(1, 4))
    lake.destination(of_shard(0)).write(rows_of_shard(0, 3))
    lake.destination(of_shard(1)).write(rows_of_shard(4, 7, through=3))
    assert lake.numbers() == [0, 1, 3, 4, 7]
    lake.destination(of_shard(0)).write(rows_of_shard(0, 3, micro_batch=2))
    assert lake.numbers() == [0, 0, 1, 3, 3, 4, 7]
    # Two marks, however many micro-batches there are
    assert [name for name in lake.table.properties if name.startswith("conduit/")] == [
        "conduit/p/to/k03.00",
        "conduit/p/to/k03.01",
    ]


@pytest.mark.proves("I4")
def test_of_two_attempts_at_a_shard_one_commits_and_the_other_finds_that_it_has(lake: Lake) -> None:
    lake.destination(of_shard(1)).write(rows_of_shard(1))
    one, two = lake.destination(of_shard(0)), lake.destination(of_shard(0))
    one.write(rows_of_shard(0, 3))
    two.write(rows_of_shard(0, 3))
    assert lake.numbers() == [0, 1, 3]


def test_shards_that_add_columns_to_the_table_at_the_same_moment_all_commit(lake: Lake) -> None:
    lake.destination(of_shard(0)).write(rows_of_shard(0))
    writers = [lake.destination(of_shard(number)) for number in range(3)]
    failed: list[BaseException] = []

    def write(number: int) -> None:
        try:
            writers[number].write(rows_of_shard(number + 3, **{f"c{number}": number}))
        except BaseException as error:  # noqa: BLE001 - told to the test
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert lake.numbers() == [0, 3, 4, 5]


def test_one_task_writes_upserts() -> None:
    settings: Mapping[str, str] = {**SQL, "mode": "upsert"}
    assert "again" in IcebergDestination.one_task(settings)
    assert IcebergDestination.one_task(SQL) == ""
    assert issubclass(IcebergDestination, BatchDestination)


def test_tasks_that_find_neither_catalog_nor_namespace_nor_table_create_them_at_once(home: Path) -> None:
    """Given six that begin at the same moment, then what another one has created is taken for what it is."""
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        for n in range(8):
            at_once = threading.Barrier(6)
            settings = {**SQL, "table": f"lake{n}.t", "catalog.uri": f"sqlite:///{home}/c{n}.db"}

            def write(task: int, settings: dict[str, str] = settings, at_once: threading.Barrier = at_once) -> None:
                made = IcebergDestination(settings)
                stack.callback(made.close)
                made.pipeline, made.connector = "p", f"to{task}"
                at_once.wait(60)
                made.open(None)
                at_once.wait(60)
                made.write(rows({"n": task}, numbered=False))

            list(pool.map(write, range(6)))
            with load_catalog("default", uri=f"sqlite:///{home}/c{n}.db", warehouse="wh") as catalog:
                found = catalog.load_table(f"lake{n}.t").scan().to_arrow().to_pylist()
            assert sorted(row["n"] for row in found) == list(range(6))
