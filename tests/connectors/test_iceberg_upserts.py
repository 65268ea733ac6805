"""Rows of Iceberg tables that are replaced and deleted by their key."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Transaction
from pyiceberg.table.update import update_table_metadata
from pyiceberg.transforms import BucketTransform, DayTransform, Transform

from conduit_tasks.connectors.iceberg.commit import Commit
from conduit_tasks.errors import ConfigError, Refused
from conduit_tasks.record.record import Record
from tests.connectors.iceberg_lake import Lake
from tests.connectors.test_delta import rows

pytestmark = pytest.mark.xdist_group("iceberg")


def changed(*changes: tuple[str, Any, Any] | Record, **more: Any) -> Any:
    """Rows of changes: an operation, the payload before and after."""
    made = rows(*({"n": n} for n in range(len(changes))), **more)
    records = [
        each if isinstance(each, Record) else Record(b"%d" % n, each[0], before=each[1], after=each[2])
        for n, each in enumerate(changes)
    ]

    class Changed(type(made)):  # type: ignore[misc]  # as they would be in the batch
        def records(self) -> list[Record]:
            return records

    return Changed(**made.__dict__)


@pytest.mark.parametrize("partition_by", ["", "v"])
def test_the_last_record_of_a_key_is_its_row(lake: Lake, partition_by: str) -> None:
    out = lake.upserts(partition_by=partition_by)
    out.write(rows({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "c"}, numbered=False))
    assert lake.by_id() == {1: "c", 2: "b"}
    out.write(rows({"id": 2, "v": "d"}, {"id": 3, "v": "e"}, numbered=False))
    assert lake.by_id() == {1: "c", 2: "d", 3: "e"}
    # The table knows its key, so that others need not be told
    lake.destination(mode="upsert").write(rows({"id": 3}, numbered=False))
    assert lake.by_id() == {1: "c", 2: "d", 3: None}


@pytest.mark.parametrize("transform", [DayTransform(), BucketTransform(4)])
def test_rows_move_between_the_partitions_of_a_table_that_is_there(lake: Lake, transform: Transform[Any, Any]) -> None:
    lake.catalog.create_namespace("lake")
    schema = pa.schema(
        [pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC")), pa.field("v", pa.string())]
    )
    with lake.catalog.create_table("lake.t", schema).update_spec() as update:
        update.add_field("at", transform, "part")
    out = lake.upserts()
    out.write(rows({"id": 1, "at": "2026-01-01T00:00:00Z", "v": "a"}, {"id": 2, "at": "2026-01-02T00:00:00Z"}))
    out.write(rows({"id": 2, "at": "2026-01-03T00:00:00Z", "v": "b"}, {"id": 3, "at": None}, first=3))
    assert lake.by_id() == {1: "a", 2: "b", 3: None}


def test_deletes_and_changed_keys_are_applied_in_their_order(either: Lake) -> None:
    out = either.upserts()
    # A table that is not there has nothing to delete
    out.write(changed(("delete", {"id": 1}, None)))
    with pytest.raises(NoSuchTableError):
        _ = either.table
    out.write(rows(*({"id": n, "v": str(n)} for n in range(6)), numbered=False))
    out.write(
        changed(
            ("delete", {"id": 0}, None),
            ("delete", {"id": 1}, None),
            ("create", None, {"id": 1, "v": "again"}),
            ("create", None, {"id": 9, "v": "new"}),
            ("delete", {"id": 9}, None),
            ("update", {"id": 2, "v": "2"}, {"id": 7, "v": "moved"}),
            Record(b"k", "delete", key={"id": 3}),
            Record(b"r", "delete", key=b"4"),
            Record(b"u", "update", key={"id": 5}, after={"v": "of its key"}),
            numbered=False,
        )
    )
    assert either.by_id() == {1: "again", 5: "of its key", 7: "moved"}
    out.write(changed(("delete", {"id": 77}, None), numbered=False))
    # Whichever database the table was emptied in
    for id, mark in ((6, "postgres.truncate"), (5, "mysql.truncate")):
        out.write(
            changed(
                ("create", None, {"id": 8, "v": "goes"}),
                Record(b"t", "delete", {mark: "true"}),
                ("create", None, {"id": id, "v": "stays"}),
                numbered=False,
            )
        )
        assert either.by_id() == {id: "stays"}


def test_a_key_of_several_columns_is_exactly_that(either: Lake) -> None:
    """Given rows that have one part of a key each, then only those that have both are replaced or deleted."""
    out = either.upserts("shop, id")
    pairs = [(shop, n) for shop in ("x", "y") for n in range(3)]
    out.write(rows(*({"shop": shop, "id": n, "v": 0, "w": {"a": n}} for shop, n in pairs), numbered=False))
    out.write(
        changed(
            ("create", None, {"shop": "x", "id": 1, "v": 1, "new": "column"}),
            ("delete", {"shop": "y", "id": 2}, None),
            numbered=False,
        )
    )
    found = {(row["shop"], row["id"]): (row["v"], row["w"], row["new"]) for row in either.rows()}
    assert len(either.rows()) == 5
    assert found[("x", 1)] == (1, None, "column")
    assert {key: row for key, row in found.items() if key != ("x", 1)} == {
        (shop, n): (0, {"a": n}, None) for shop, n in pairs if (shop, n) not in (("x", 1), ("y", 2))
    }


def test_keys_are_the_same_if_the_table_says_so_however_they_are_written(lake: Lake) -> None:
    lake.catalog.create_namespace("lake")
    schema = pa.schema([pa.field("id", pa.timestamp("us", "UTC")), pa.field("v", pa.string())])
    lake.catalog.create_table("lake.t", schema)
    out = lake.upserts()
    out.write(rows({"id": "2026-01-01T00:00:00Z", "v": "a"}, {"id": "2026-01-01T01:00:00+01:00", "v": "b"}))
    out.write(rows({"id": "2026-01-01T02:00:00+02:00", "v": "c"}, first=3))
    assert list(lake.by_id().values()) == ["c"]


def test_more_keys_than_statistics_look_at_are_found_all(lake: Lake) -> None:
    out = lake.upserts()
    out.write(rows(*({"id": n, "v": "old"} for n in range(600)), numbered=False))
    out.write(rows(*({"id": n, "v": "new"} for n in range(150, 450)), numbered=False))
    found = lake.by_id()
    assert sorted(n for n, v in found.items() if v == "new") == list(range(150, 450))
    assert len(found) == 600


@pytest.mark.proves("B8", "O5", "I4")
def test_upserts_that_come_again_put_nothing_back_and_others_rows_are_seen(either: Lake) -> None:
    """Given a write that comes again after another program changed a row, then its row stays; and of a write that was
    prepared before, what it replaces is looked for again."""
    either.upserts().write(rows({"id": 1, "v": "a"}, {"id": 2, "v": "b"}))
    one, other = either.upserts(), either.upserts()
    one.write(rows({"id": 1, "v": "c"}, {"id": 5, "v": "f"}, numbered=False))
    other.write(rows({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 5, "v": "e"}))
    assert either.by_id() == {1: "c", 2: "b", 5: "e"}


@pytest.mark.proves("I4")
def test_of_two_upserts_of_one_key_into_an_empty_table_the_later_one_replaces_the_earlier_one(lake: Lake) -> None:
    """Given a table without a snapshot, in which neither finds anything to replace."""
    lake.catalog.create_namespace("lake")
    lake.catalog.create_table("lake.t", pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())]))
    one, other = lake.upserts(), lake.upserts()
    one.write(rows({"id": 1, "v": "a"}, numbered=False))
    other.write(rows({"id": 1, "v": "b"}, numbered=False))
    assert lake.by_id() == {1: "b"}


def test_records_that_are_no_change_of_a_row_are_refused(lake: Lake) -> None:
    out = lake.upserts()
    out.write(rows({"id": 1, "v": "a"}, numbered=False))
    for record, said in (
        (Record(b"1", after={"v": 1}), "no id, which is the key"),
        (Record(b"1", after={"id": None}), "no id, which is the key"),
        (Record(b"1", "delete", before={"v": 1}), "a delete names no id"),
        (Record(b"1", "delete", key=b"\xff"), "a delete names no id"),
        (Record(b"1", after=b"raw"), "no row"),
        (Record(b"1", after={"id": "x"}), "field 'id' is no int64"),
        (Record(b"1", "update", {"postgres.unchanged": "v"}, after={"id": 1}), "REPLICA IDENTITY FULL"),
    ):
        with pytest.raises(Refused, match=said):
            out.write(changed(record, numbered=False))
    assert lake.by_id() == {1: "a"}
    lake.destination().write(rows({"id": 2, "x": 1.5}, numbered=False))
    for key, said in (("w", "no column w"), ("x", "'x' is of type double, which cannot be a key")):
        with pytest.raises(ConfigError, match=said):
            lake.upserts(key).write(changed(("delete", {key: 1.5}, None), numbered=False))


@pytest.mark.parametrize("add", [{}, {"new": 1}])
def test_a_commit_copies_the_tables_metadata_once_per_change(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, add: dict[str, Any]
) -> None:
    """It has all schemas and snapshots of the table, so that a copy takes the longer the older the table is."""
    to = lake.upserts()
    to.write(rows({"id": 1, "v": "a"}, {"id": 2, "v": "a"}, numbered=False))
    made: list[int] = []
    changes: list[Any] = []

    def copied(metadata: Any, updates: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(len(updates))
        return update_table_metadata(metadata, updates, *args, **kwargs)

    def committed(commit: Commit) -> Any:
        changes.extend(commit._updates)
        return Transaction.commit_transaction(commit)

    monkeypatch.setattr("pyiceberg.table.update_table_metadata", copied)
    monkeypatch.setattr(Commit, "commit_transaction", committed)
    to.write(rows({"id": 1, "v": "b", **add}, numbered=False))
    assert lake.by_id() == {1: "b", 2: "a"}
    assert len(made) == len(set(made)) <= len(changes) + 1
