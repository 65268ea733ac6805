"""What a source of `postgres` leaves behind when its pipeline goes, and what of JSON it keeps exactly."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from conduit_tasks.cli.main import app
from conduit_tasks.errors import ConfigError
from tests.connectors.postgres_database import Database
from tests.connectors.postgres_reading import drain, source
from tests.micro_batch.harness import run_until_quiet, state, write_pipeline

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {id: in, type: source, plugin: postgres, settings: {url: "URL", tables: t}}
      - {id: out, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
"""


def left(db: Database) -> list[str]:
    query = "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database()"
    return sorted(name for (name,) in db.run(f"{query} UNION ALL SELECT pubname::text FROM pg_publication"))


def test_a_stopped_pipelines_slot_and_publication_are_dropped_on_demand(home: Path, db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    write_pipeline(home, "p", PIPELINE.replace("URL", db.url))
    run_until_quiet("p")
    assert left(db) == ["conduitpub", "conduitslot"]

    def conduit(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["connectors", "teardown", "p", *arguments])
        return done.exit_code, f"{done.output} {done.exception}"

    # Given a pipeline that may still run, nothing is dropped; nor without being sure
    assert "not stopped" in conduit("in", "--yes")[1]
    broker = state("p")
    broker.lifecycle.force_stop()
    broker.close()
    assert conduit("in")[0] == 1
    assert "no source other" in conduit("other", "--yes")[1]
    assert left(db) == ["conduitpub", "conduitslot"]
    # When it is stopped, all is gone, once
    assert "removed: slot conduitslot, publication conduitpub" in conduit("in", "--yes")[1]
    assert left(db) == []
    assert "nothing to remove" in conduit("in", "--yes")[1]


def test_what_somebody_else_made_or_wants_to_keep_stays(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION theirs FOR TABLE t")
    made = source(db, **{"logrepl.publicationName": "theirs"})
    drain(made, {})
    with pytest.raises(ConfigError, match=r"logrepl\.autoCleanup"):
        source(db, **{"logrepl.autoCleanup": "false"}).teardown()
    assert source(db, mode="snapshot").teardown() == []
    assert made.teardown() == ["slot conduitslot"]
    assert left(db) == ["theirs"]
    db.run("SELECT pg_create_physical_replication_slot('conduitslot')")
    with pytest.raises(ConfigError, match="another's"):
        made.teardown()
    db.run("SELECT pg_drop_replication_slot('conduitslot')")


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_whole_numbers_beyond_64_bits_inside_json_keep_every_digit(db: Database, kind: str) -> None:
    text = (
        '{"a": [18446744073709551615, 18446744073709551616, -9223372036854775808, -9223372036854775809],'
        ' "b": {"c": 123456789012345678901234567890}, "d": "123456789012345678901234567890", "e": 1.5}'
    )
    db.run(f"CREATE TABLE t (id int PRIMARY KEY, j {kind})", f"INSERT INTO t VALUES (1, '{text}')")
    made = source(db)
    records, position = drain(made, {})
    db.run("INSERT INTO t SELECT 2, j FROM t")
    records += drain(made, position)[0]
    large = "123456789012345678901234567890"
    expected = {
        "a": [18446744073709551615, "18446744073709551616", -9223372036854775808, "-9223372036854775809"],
        "b": {"c": large},
        "d": large,
        "e": 1.5,
    }
    assert [r.after["j"] for r in records] == [expected, expected]  # type: ignore[index,call-overload]
