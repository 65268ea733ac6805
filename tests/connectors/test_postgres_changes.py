"""Changes of one key in one write of the destination of `postgres` are as they would be one by one."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from conduit_tasks.connectors.postgres.apply import Apply
from conduit_tasks.errors import ConfigError, Fenced, Refused
from conduit_tasks.record.record import Record
from tests.connectors.postgres_database import Database
from tests.connectors.test_postgres_destination import change, opened, rows, write
from tests.micro_batch.harness import run_once, write_pipeline

TRIGGER = """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN IF NEW.id = 3 THEN RAISE EXCEPTION 'three is refused' {}; END IF; RETURN NEW; END $$"""
FIRES = "CREATE TRIGGER refuses BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION refuse()"


def both_ways(db: Database, columns: str, *changes: Record, begin: str = "") -> list[tuple[object, ...]]:
    """The rows of `t` after one write of all, which are those after a write of each."""
    found = []
    for at_once in (True, False):
        db.run("DROP TABLE IF EXISTS t", f"CREATE TABLE t ({columns})", *([begin] if begin else []))
        destination = opened(db)
        for chunk in [list(changes)] if at_once else [[one] for one in changes]:
            destination.write(rows(chunk))
        destination.close()
        found.append(db.run("SELECT * FROM t ORDER BY 1"))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.proves("C9", "C17")
def test_records_that_name_some_fields_only_are_merged(db: Database) -> None:
    columns = "id int PRIMARY KEY, a int, b int DEFAULT 7"
    changes = [change("create", {"id": 1, "a": 1, "b": 1}), change("update", {"id": 1, "b": 2})]
    assert both_ways(db, columns, *changes) == [(1, 1, 2)]
    # What a row had goes with it
    changes = [change("delete", key={"id": 1}), change("create", {"id": 1, "b": 2})]
    assert both_ways(db, columns, *changes, begin="INSERT INTO t VALUES (1, 1, 1)") == [(1, None, 2)]
    # A row that moves with a large value left unsaid takes all along that is not said
    changes = [change("update", {"id": 1, "b": 2}), change("update", {"id": 9}, {"id": 1}, unchanged="a")]
    assert both_ways(db, columns, *changes, begin="INSERT INTO t VALUES (1, 1, 1)") == [(9, 1, 2)]
    # Also if it is written again: what has its new key is what the first write made of it
    changes = [change("create", {"id": 1, "a": 1}), change("update", {"id": 9, "b": 3}, {"id": 1}, unchanged="a")]
    changes += [change("create", {"id": 1, "a": 2}), *changes]
    assert both_ways(db, columns, *changes) == [(9, 1, 3)]


@pytest.mark.proves("C9", "C17")
@pytest.mark.parametrize(
    ("columns", "spelled"),
    [
        ("id uuid", ("aaaaaaaa-0000-0000-0000-000000000001", "AAAAAAAA-0000-0000-0000-000000000001")),
        ("id numeric(9, 3)", ("1.50", 1.5)),
        ("id timestamptz", ("2026-01-02T03:04:05Z", "2026-01-02 04:04:05+01")),
        ("id char(5)", ("ab", "ab  ")),
        ("id int", (5, "05")),
        ('id text COLLATE "any-case"', ("Ab", "aB")),
    ],
)
def test_a_key_may_be_written_in_more_than_one_way(db: Database, columns: str, spelled: tuple[object, ...]) -> None:
    db.run("CREATE COLLATION \"any-case\" (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    one, other = spelled
    changes = [change("create", {"id": one, "v": 1}), change("delete", key={"id": other})]
    assert both_ways(db, f"{columns} PRIMARY KEY, v int, w int", *changes) == []
    changes[1] = change("update", {"id": other, "w": 2})
    assert [row[1:] for row in both_ways(db, f"{columns} PRIMARY KEY, v int, w int", *changes)] == [(1, 2)]


def test_a_key_that_is_too_long_is_not_cut(db: Database) -> None:
    db.run("CREATE TABLE t (id varchar(3) PRIMARY KEY, v varchar(3))", "INSERT INTO t VALUES ('abc', 'x')")
    for record in (change("delete", key={"id": "abcd"}), change("update", {"id": "abc", "v": "long"}, unchanged="w")):
        with pytest.raises(Refused, match="too long"):
            write(db, record)
    assert db.run("SELECT * FROM t") == [("abc", "x")]


@pytest.mark.proves("C9", "C17")
def test_any_changes_at_once_are_as_one_by_one(db: Database) -> None:
    chance = random.Random(5)
    for _ in range(25):
        changes = []
        for _ in range(12):
            id_ = chance.randint(1, 3)
            named = {name: chance.randint(1, 99) for name in "ab" if chance.random() < 0.6}
            kind = chance.choice(["create", "update", "move", "rest", "delete", "truncate"])
            if kind == "delete" or (kind == "truncate" and chance.random() < 0.2):
                marks = {"truncate": "true"} if kind == "truncate" else {}
                changes.append(change("delete", key=None if marks else {"id": id_}, **marks))
            elif kind == "move":
                changes.append(change("update", {"id": id_, **named}, {"id": chance.randint(1, 3)}))
            else:
                marks = {"unchanged": "c"} if kind == "rest" else {}
                changes.append(change("update" if marks else "create", {"id": id_, **named}, **marks))
        both_ways(db, "id int PRIMARY KEY, a int, b int, c int DEFAULT 1", *changes, begin="INSERT INTO t VALUES (1)")


@pytest.mark.proves("I4")
def test_a_writer_that_lost_its_lease_puts_nothing_over_what_is_newer(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a writer that stands still before it writes, until its successor is done
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    old, new = (change("update", {"id": 1, "v": text}) for text in ("old", "new"))
    whole, stands, go, said = Apply.finish, threading.Event(), threading.Event(), []

    def finish(apply: Apply) -> None:
        if threading.current_thread() is stalled:
            stands.set()
            assert go.wait(60)
        whole(apply)

    def lost() -> None:
        raise Fenced("the lease was lost")

    def write_old() -> None:
        try:
            destination.write(rows([old]))
        except Fenced as error:
            said.append(str(error))

    monkeypatch.setattr(Apply, "finish", finish)
    destination = opened(db)
    destination.still_ours = lost
    stalled = threading.Thread(target=write_old)
    stalled.start()
    assert stands.wait(60)
    write(db, old)
    write(db, new)
    # When it goes on, then it is told, and what it would have written is not there
    go.set()
    stalled.join(60)
    destination.close()
    assert said == ["the lease was lost"]
    assert db.run("SELECT v FROM t") == [("new",)]


@pytest.mark.proves("T6", "C5")
@pytest.mark.parametrize("plugin", ["postgres", "sql"])
def test_a_row_that_a_trigger_refuses_is_a_dead_letter_and_holds_nothing_up(
    home: Path, db: Database, plugin: str
) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", TRIGGER.format(""), FIRES)
    (home / "data").mkdir()
    (home / "data/a.jsonl").write_text("".join(f'{{"id": {n}}}\n' for n in range(10)))
    more = ", mode: append, id-column: none" if plugin == "sql" else ""
    write_pipeline(
        home,
        "p",
        f"""
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: f, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: out, type: destination, plugin: {plugin}, settings: {{url: "{db.url}", table: t{more}}}}}
""",
    )
    run_once("p", "r")
    assert db.run("SELECT id FROM t ORDER BY id") == [(n,) for n in range(10) if n != 3]


@pytest.mark.proves("T6")
@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([TRIGGER.format("USING ERRCODE = 'U0001'"), FIRES], "three is refused"),
        (["CREATE INDEX ON t (v)"], "index"),
        (["ALTER TABLE t RENAME TO u", "CREATE VIEW t AS SELECT * FROM u WHERE id < 3 WITH CHECK OPTION"], "check"),
    ],
)
def test_what_the_tables_own_rules_refuse_is_refused(db: Database, made: list[str], said: str) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text)", *made)
    chance = random.Random(1)
    with pytest.raises(Refused, match=said):
        write(db, change("create", {"id": 3, "v": chance.randbytes(9_000).hex()}), key="id")


@pytest.mark.proves("T6")
def test_a_row_that_a_policy_refuses_is_told_from_a_right_that_is_missing(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY small ON t USING (true) WITH CHECK (id < 3)",
        "CREATE ROLE writer LOGIN",
    )
    try:
        url = db.url.replace("postgres@", "writer@")
        with pytest.raises(ConfigError, match="rights"):
            write(db, change("create", {"id": 3}), url=url)
        db.run("GRANT ALL ON t TO writer")
        with pytest.raises(Refused, match="policy"):
            write(db, change("create", {"id": 3}), url=url)
        write(db, change("create", {"id": 2}), url=url)
    finally:
        db.run("DROP OWNED BY writer", "DROP ROLE writer")
    assert db.run("SELECT id FROM t") == [(2,)]
