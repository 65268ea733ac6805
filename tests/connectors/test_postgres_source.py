"""The source of `postgres` on a real server: rows as they are, then what changes, by a slot that only acks move."""

from __future__ import annotations

import time
from typing import Any

import pytest

from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.postgres.client import lsn_number
from tests.connectors.postgres_database import Database
from tests.connectors.postgres_reading import drain, source, step


@pytest.mark.proves("C9", "I3")
@pytest.mark.parametrize("most", [None, 3])
def test_rows_come_first_and_then_every_change_with_what_was_before(db: Database, most: int | None) -> None:
    # Given a table with rows, and one that tells whole old rows
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 7) n",
        'CREATE SCHEMA "o.. ther"',
        "CREATE TABLE u (a int, b int, v text, PRIMARY KEY (b, a))",
        "ALTER TABLE u REPLICA IDENTITY FULL",
        "INSERT INTO u VALUES (1, 2, 'u')",
    )
    made = source(db, tables="t, public.u")
    # When they are read, then changed, and read on
    records, position = drain(made, {}, most)
    assert [r.operation for r in records] == ["snapshot"] * 8
    assert [r.after["id"] for r in records[:7]] == [1, 2, 3, 4, 5, 6, 7]  # type: ignore[index,call-overload]
    assert (records[7].key, records[7].metadata) == ({"b": 2, "a": 1}, {"opencdc.collection": "u"})
    db.run(
        "BEGIN; INSERT INTO t VALUES (8, NULL); UPDATE t SET v = 'new' WHERE id = 1; COMMIT",
        "UPDATE t SET id = 20 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "UPDATE u SET v = 'w'",
        "DELETE FROM u",
        "TRUNCATE t, u",
    )
    changes, position = drain(made, position, most)
    # Then each is a record, in the order of the commits
    said = [(r.operation, r.key, r.before, r.after) for r in changes]
    assert said == [
        ("create", {"id": 8}, None, {"id": 8, "v": None}),
        ("update", {"id": 1}, None, {"id": 1, "v": "new"}),
        ("update", {"id": 20}, {"id": 2}, {"id": 20, "v": "v2"}),
        ("delete", {"id": 3}, {"id": 3}, None),
        ("update", {"a": 1, "b": 2}, {"a": 1, "b": 2, "v": "u"}, {"a": 1, "b": 2, "v": "w"}),
        ("delete", {"a": 1, "b": 2}, {"a": 1, "b": 2, "v": "w"}, None),
        ("delete", None, None, None),
        ("delete", None, None, None),
    ]
    assert [r.metadata["opencdc.collection"] for r in changes[-2:]] == ["t", "u"]
    assert changes[-1].metadata["postgres.truncate"] == "true"
    assert abs(int(changes[0].metadata["opencdc.createdAt"]) / 1e9 - time.time()) < 60
    assert len({r.position for r in records + changes}) == len(records + changes)
    assert step(made, position, Limit()) is None


def test_values_are_the_same_in_rows_and_in_changes(db: Database) -> None:
    db.run(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TABLE t (id bigint PRIMARY KEY, b bool, i int2, r float4, d float8, n numeric(30,10), s text, "
        "c char(3), y bytea, j json, k jsonb, a int[], ta text[], ts timestamp, tz timestamptz, da date, "
        "ti time, u uuid, e mood, iv interval, g int GENERATED ALWAYS AS (i + 1) STORED)",
    )
    row = (
        "(%d, true, 3, 0.1, 'NaN', 12345678901234567890.0123456789, E'q\"\\\\\\t', 'x', '\\x00ff', "
        "'{\"a\": [1, null]}', '[1, \"x\"]', '{{1,NULL},{3,4}}', ARRAY['a,b', NULL, '\"', ''], "
        "'2026-01-02 03:04:05.6', '2026-01-02 03:04:05+02', '2026-01-02', '01:02:03', "
        " '00000000-0000-0000-0000-000000000001', 'glad', '1 day')"
    )
    db.run("INSERT INTO t VALUES " + row % 9007199254740993)
    made = source(db)
    [snapshot], position = drain(made, {})
    db.run("DELETE FROM t", "INSERT INTO t VALUES " + row % 9007199254740993)
    [_, created], _ = drain(made, position)
    assert snapshot.after == created.after
    assert created.after == {
        "id": 9007199254740993,
        "b": True,
        "i": 3,
        "r": 0.1,
        "d": "NaN",
        "n": "12345678901234567890.0123456789",
        "s": 'q"\\\t',
        "c": "x  ",
        "y": "AP8=",
        "j": {"a": [1, None]},
        "k": [1, "x"],
        "a": [[1, None], [3, 4]],
        "ta": ["a,b", None, '"', ""],
        "ts": "2026-01-02T03:04:05.6",
        "tz": "2026-01-02T01:04:05Z",
        "da": "2026-01-02",
        "ti": "01:02:03",
        "u": "00000000-0000-0000-0000-000000000001",
        "e": "glad",
        "iv": "P1D",
    }


@pytest.mark.proves("T2", "C12")
def test_the_slot_moves_with_acks_only_and_never_past_them(db: Database) -> None:
    # Given changes that were read, and a crash of the server
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made = source(db)
    _, position = drain(made, {})
    at = db.confirmed()
    db.run(*[f"INSERT INTO t VALUES ({n})" for n in range(5)])
    first = step(made, position, Limit(records=2))
    assert first is not None
    rest, _ = drain(made, first[1])
    assert (db.confirmed(), len(rest)) == (at, 3)
    # When the first two are acked, twice
    made.ack(first[1])
    made.ack(first[1])
    assert db.confirmed() == first[1][""]["lsn"]
    # Then the rest is still there, after a crash too
    db.server.kill()
    db.server.start()
    again, _ = drain(source(db), first[1])
    assert [(r.position, r.after) for r in again] == [(r.position, r.after) for r in rest]


@pytest.mark.proves("I3", "I7")
def test_a_transaction_that_does_not_fit_is_read_in_pieces_and_only_acked_whole(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made = source(db)
    _, position = drain(made, {})
    db.run("INSERT INTO t VALUES (0)", "INSERT INTO t SELECT generate_series(1, 100)", "INSERT INTO t VALUES (101)")
    found: list[Any] = []
    acked = db.confirmed()
    while (part := step(made, position, Limit(records=30))) is not None:
        records, position = part
        assert len(records) <= 30
        found += [r.after["id"] for r in records]  # type: ignore[index,call-overload]
        made.ack(position)
        if position[""]["skip"]:
            assert lsn_number(db.confirmed()) >= lsn_number(acked)
    assert found == list(range(102))
    # By bytes too, one at least at a time
    whole, _ = drain(made, position)
    assert whole == []
    db.run("INSERT INTO t SELECT generate_series(200, 209)")
    sizes = []
    while (part := step(made, position, Limit(bytes=1))) is not None:
        sizes.append(len(part[0]))
        position = part[1]
    assert sizes == [1] * 10


def test_columns_that_come_and_go_in_the_middle_are_told_as_they_were(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    made = source(db)
    _, position = drain(made, {})
    db.run(
        "INSERT INTO t VALUES (1, 1)",
        "ALTER TABLE t ADD b text DEFAULT 'x'",
        "INSERT INTO t VALUES (2, 2, 'y')",
        "ALTER TABLE t DROP a",
        "INSERT INTO t VALUES (3, 'z')",
        "ALTER TABLE t RENAME b TO c",
        "INSERT INTO t VALUES (4, 'c')",
    )
    changes, _ = drain(made, position, 1)
    assert [r.after for r in changes] == [
        {"id": 1, "a": 1},
        {"id": 2, "a": 2, "b": "y"},
        {"id": 3, "b": "z"},
        {"id": 4, "c": "c"},
    ]


def test_a_large_value_that_did_not_change_is_left_out_and_named(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, big text, n int)", "ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    db.run("INSERT INTO t VALUES (1, repeat('x', 10000), 1)")
    made = source(db)
    _, position = drain(made, {})
    db.run("UPDATE t SET n = 2")
    [partial], position = drain(made, position)
    assert (partial.after, partial.metadata["postgres.unchanged"]) == ({"id": 1, "n": 2}, "big")
    db.run("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET n = 3")
    [whole], _ = drain(made, position)
    assert isinstance(whole.after, dict)
    assert (len(whole.after["big"]), "postgres.unchanged" in whole.metadata) == (10000, False)


@pytest.mark.proves("C10")
def test_changes_during_the_snapshot_are_told_again_and_nothing_is_missed(db: Database) -> None:
    # Given a snapshot half read
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT n, 0 FROM generate_series(1, 20) n")
    made = source(db)
    rows: dict[Any, Any] = {}
    first = step(made, {}, Limit(records=10))
    assert first is not None
    records, position = first
    # When rows before and after that place change, come, go and move
    db.run(
        "UPDATE t SET v = 1 WHERE id IN (5, 15)",
        "DELETE FROM t WHERE id IN (6, 16)",
        "INSERT INTO t VALUES (0, 9), (21, 9)",
        "UPDATE t SET id = -id WHERE id IN (7, 17)",
    )
    rest, _ = drain(made, position, 10)
    # Then applied in order, everything is as it is there
    for record in records + rest:
        old = record.before["id"] if isinstance(record.before, dict) else None
        if old is not None:
            rows.pop(old, None)
        if isinstance(record.after, dict):
            rows[record.after["id"]] = record.after["v"]
    assert rows == dict(db.run("SELECT id, v FROM t"))


def test_a_snapshot_alone_makes_no_slot_and_ends(db: Database) -> None:
    db.run(
        'CREATE TABLE "T%s" ("I""d" timestamptz PRIMARY KEY)',
        "INSERT INTO \"T%s\" SELECT now() + n * interval '1 s' FROM generate_series(1, 9) n",
    )
    made = source(db, mode="snapshot", tables="*")
    records, position = drain(made, {}, 4)
    assert len(records) == 9
    assert db.run("SELECT * FROM pg_replication_slots WHERE database = current_database()") == []
    made.ack(position)
    assert made.plan(position, Limit()) == []


def test_log_without_changes_of_ours_is_let_go(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("conduit_tasks.connectors.postgres.connector._BEHIND", 100_000)
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    made = source(db)
    _, position = drain(made, {})
    db.run("INSERT INTO other SELECT repeat('x', 100) FROM generate_series(1, 2000)")
    found = step(made, position, Limit(records=5))
    assert found is not None
    assert found[0] == []
    made.ack(found[1])
    assert db.confirmed() == found[1][""]["lsn"]
    db.run("INSERT INTO t VALUES (1)")
    assert len(drain(made, found[1])[0]) == 1
