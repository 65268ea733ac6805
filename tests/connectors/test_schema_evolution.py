"""Option `schema` of every destination of tables: what it does to the table and to a record that does not fit, and how
the letter arrives once the table is changed (docs/schema-evolution.md)."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField, StringType

from conduit_tasks.connectors import registry
from conduit_tasks.connectors.base import BatchDestination
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.dead_letters.select import Selection
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.errors import DoesNotFit, PipelineStopped
from conduit_tasks.micro_batch.context import opened
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.resend.redrive import redrive
from conduit_tasks.settings import settings
from tests.micro_batch.harness import run_once, state, write_pipeline

ORIGIN = Origin("p", "in", "")


@dataclass(frozen=True)
class Place:
    """A table `t` with columns `n` (32 bits) and `v` (text). `add`: adds column `extra` as another program does."""

    plugin: str
    settings: dict[str, str]
    rows: Callable[[], list[dict[str, Any]]]
    add: Callable[[], object]

    def destination(self, **more: str) -> BatchDestination:
        found = registry.destination_class(self.plugin)
        made = found({**self.settings, **more})
        assert isinstance(made, BatchDestination)
        made.pipeline, made.connector = "p", "out"
        made.open(None)
        return made

    def by_n(self) -> dict[Any, dict[str, Any]]:
        """Returns the rows by `n`, without what is null."""
        return {row["n"]: {name: each for name, each in row.items() if each is not None} for row in self.rows()}


def delta(home: Path, request: Any) -> Place:
    types = pa.schema([pa.field("n", pa.int32()), pa.field("v", pa.string())])
    write_deltalake(home / "t", types.empty_table())

    def add() -> None:
        there = DeltaTable(home / "t").to_pyarrow_table()
        new = there.append_column("extra", pa.nulls(there.num_rows, pa.string()))
        write_deltalake(home / "t", new, mode="overwrite", schema_mode="overwrite")

    return Place("delta", {"path": "t"}, lambda: DeltaTable(home / "t").to_pyarrow_table().to_pylist(), add)


def iceberg(home: Path, request: Any) -> Place:
    catalog = load_catalog("default", uri=f"sqlite:///{home}/c.db", warehouse=str(home / "wh"))
    request.addfinalizer(catalog.close)
    catalog.create_namespace("lake")
    fields = (NestedField(1, "n", IntegerType()), NestedField(2, "v", StringType()))
    catalog.create_table("lake.t", Schema(*fields))

    def add() -> None:
        with catalog.load_table("lake.t").update_schema() as update:
            update.add_column("extra", StringType())

    made = {"table": "lake.t", "catalog.uri": "sqlite:///c.db", "catalog.warehouse": "wh"}
    return Place("iceberg", made, lambda: catalog.load_table("lake.t").scan().to_arrow().to_pylist(), add)


def postgres(home: Path, request: Any) -> Place:
    db = request.getfixturevalue("db")
    db.run("CREATE TABLE t (n int PRIMARY KEY, v varchar(3))")
    rows = lambda: [row for (row,) in db.run("SELECT to_jsonb(t) FROM t")]  # noqa: E731
    return Place("postgres", {"url": db.url, "table": "t"}, rows, lambda: db.run("ALTER TABLE t ADD extra text"))


def sql(home: Path, request: Any) -> Place:
    db = request.getfixturevalue("db")
    db.run("CREATE TABLE t (id varchar(32) PRIMARY KEY, n int, v varchar(3))")
    rows = lambda: [row for (row,) in db.run("SELECT to_jsonb(t) - 'id' FROM t")]  # noqa: E731
    return Place("sql", {"url": db.url, "table": "t"}, rows, lambda: db.run("ALTER TABLE t ADD extra text"))


def sqlite(home: Path, request: Any) -> Place:
    def run(statement: str) -> list[dict[str, Any]]:
        db = sqlite3.connect(home / "t.db")
        db.row_factory = sqlite3.Row
        try:
            with db:
                return [dict(row) for row in db.execute(statement)]
        finally:
            db.close()

    run("CREATE TABLE t (id TEXT PRIMARY KEY, n INT, v TEXT)")

    def rows() -> list[dict[str, Any]]:
        found = run("SELECT * FROM t")
        return [{name: each for name, each in row.items() if name != "id"} for row in found]

    return Place("sql", {"url": "sqlite:///t.db", "table": "t"}, rows, lambda: run("ALTER TABLE t ADD extra TEXT"))


PLACES = {made.__name__: made for made in (delta, iceberg, postgres, sql, sqlite)}


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, home: Path) -> Place:
    return PLACES[request.param](home, request)


def rows_of(*payloads: Any) -> Rows:
    marks = {"opencdc.collection": "t"}
    records = [
        Record(repr(payload).encode(), "create", marks, None, None, payload, origin=ORIGIN) for payload in payloads
    ]
    batch = spool_batch([0] * len(records), list(range(len(records))), records)
    return Rows(batch, [ORIGIN], 1, 0, len(records) - 1, None)


PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "in.jsonl", format: jsonl, settle: 0s}}}}
      - {{id: out, type: destination, plugin: {plugin}, settings: {settings}, delivery: {{refused: {refused}}}}}
"""


def run(home: Path, place: Place, schema: str, *payloads: Any, refused: str = "nack", more: str = "") -> Any:
    given = json.dumps({**place.settings, "schema": schema})
    text = PIPELINE.format(plugin=place.plugin, settings=given, refused=refused)
    write_pipeline(home, "p", text.replace("  - id: p\n", f"  - id: p\n    {more}\n"))
    (home / "in.jsonl").write_text("".join(json.dumps(payload) + "\n" for payload in payloads))
    return run_once("p")["destinations.out"]


def letters() -> list[Any]:
    return DeadLetterStore(settings().path(settings().dead_letters), "p").list()


@pytest.mark.proves("C5", "C6", "X2")
def test_quarantine_sets_a_record_aside_and_a_redrive_takes_it_once_the_table_was_changed(
    home: Path, place: Place
) -> None:
    # Given a pipeline that stops at its first nack, and records that the table has no columns for
    new = [{"n": n, "extra": "x"} for n in (2, 3)]
    # When it runs, then everything else is there, and the pipeline goes on
    run(home, place, "quarantine", {"n": 1}, *new, {"n": 4, "v": "v"}, refused="complete")
    assert state("p").deliveries.get("out").cursor == 1
    assert place.by_n() == {1: {"n": 1}, 4: {"n": 4, "v": "v"}}
    assert {row["error_class"] for row in letters()} == {"schema"}
    # And when the table was changed, a redrive of this class has them arrive
    place.add()
    with opened("p", "operator") as context:
        (outcome,) = redrive(context, Selection(classes=("schema",)), "me", wait=60.0)
    assert (outcome.redriven, outcome.again) == (2, 0)
    assert place.by_n() == {1: {"n": 1}, 2: new[0], 3: new[1], 4: {"n": 4, "v": "v"}}


@pytest.mark.proves("C6")
def test_freeze_refuses_a_record_which_counts_as_any_nack(home: Path, place: Place) -> None:
    said = run(home, place, "freeze", {"n": 1}, {"n": 2, "extra": "x"}, {"n": 3})
    assert isinstance(said, PipelineStopped)
    assert re.search(r"no column '?extra.*, schema\)", str(said))
    assert place.by_n() == {1: {"n": 1}}
    assert letters() == []


@pytest.mark.slow
@pytest.mark.parametrize("schema", ["freeze", "quarantine"])
def test_a_table_that_stays_as_it_is_takes_what_fits_it(place: Place, schema: str) -> None:
    out = place.destination(schema=schema)
    out.write(rows_of({"n": 1, "v": "abc", "extra": None}))
    for payload in ({"n": 2, "extra": "x"}, {"n": 2, "extra": [1]}):
        with pytest.raises(DoesNotFit, match=r"no column .?extra"):
            out.write(rows_of({"n": 3}, payload))
    out.close()
    assert place.by_n() == {1: {"n": 1, "v": "abc"}}
    assert "extra" not in place.rows()[0]


def test_evolve_adds_columns_for_new_fields(place: Place) -> None:
    out = place.destination(schema="evolve")
    out.write(rows_of({"n": 1}, {"n": 2, "i": 7, "f": 0.5, "s": "text", "b": True, "none": None, "i%": "per cent"}))
    out.write(rows_of({"n": 3, "j": {"k": [1, 2]}}))
    out.close()
    found = place.by_n()
    assert {**found[2], "b": bool(found[2]["b"])} == {
        "n": 2,
        "i": 7,
        "f": 0.5,
        "s": "text",
        "b": True,
        "i%": "per cent",
    }
    assert "none" not in place.rows()[0]
    kept = found[3]["j"]
    assert (json.loads(kept) if isinstance(kept, str) else kept) == {"k": [1, 2]}


def test_evolve_makes_a_column_as_wide_as_its_values(place: Place) -> None:
    out = place.destination(schema="evolve")
    out.write(rows_of({"n": 1, "v": "old"}))
    out.write(rows_of({"n": 2**40, "v": "longer than it was"}, {"n": 2, "v": "new"}))
    out.close()
    assert place.by_n() == {
        1: {"n": 1, "v": "old"},
        2: {"n": 2, "v": "new"},
        2**40: {"n": 2**40, "v": "longer than it was"},
    }


@pytest.mark.parametrize("place", ["delta", "iceberg", "postgres", "sql"], indirect=True)
def test_what_no_wider_column_holds_is_a_letter_and_leaves_the_table_as_it_was(place: Place) -> None:
    out = place.destination(schema="evolve")
    out.write(rows_of({"n": 1}))
    with pytest.raises(DoesNotFit):
        out.write(rows_of({"n": 2, "new": 1}, {"n": 1.5, "other": 2}))
    out.write(rows_of({"n": 3}))
    out.close()
    assert place.by_n() == {1: {"n": 1}, 3: {"n": 3}}
    assert not {"new", "other"}.intersection(place.rows()[0])


DECIMAL = pa.decimal128(5, 2)


@pytest.mark.parametrize("schema", ["evolve", "quarantine"])
@pytest.mark.parametrize(
    ("type_", "fits", "wide"),
    [
        (pa.int8(), 1, 300),
        (pa.int16(), 1, 70_000),
        (pa.int32(), 1, 2**40),
        (pa.int64(), 1, 2**70),
        (pa.int64(), 1, 0.5),
        (pa.float32(), 0.5, 0.123456789),
        (DECIMAL, 1.25, 1234567.25),
        (DECIMAL, 1.25, 1.255),
        (DECIMAL, "1.25", "1.255"),
        (pa.date32(), "2026-01-01", "2026-01-01T12:00:00"),
        (pa.timestamp("us"), "2026-01-01T12:00:00", "2026-01-01T12:00:00.1234567"),
    ],
    ids=str,
)
def test_what_a_column_of_delta_is_too_narrow_for_is_a_letter_and_the_rest_arrives(
    home: Path, schema: str, type_: pa.DataType, fits: Any, wide: Any
) -> None:
    """No column is widened, whatever `schema` says, if the table may not be rewritten; nor is a value changed."""
    write_deltalake(home / "t", pa.schema([pa.field("k", pa.int64()), pa.field("n", type_)]).empty_table())
    given = {"path": "t", "rewrite-up-to": "0"}
    table = Place("delta", given, lambda: DeltaTable(home / "t").to_pyarrow_table().to_pylist(), lambda: None)
    queue = "dead-letter-queue: {window-size: 0}" if schema == "evolve" else ""
    payloads = ({"k": 1, "n": fits}, {"k": 2, "n": wide}, {"k": 3, "n": fits})
    said = run(home, table, schema, *payloads, more=queue)
    assert sorted(row["k"] for row in table.rows()) == [1, 3]
    assert DeltaTable(home / "t").to_pyarrow_table().schema.field("n").type == type_
    broker = state("p")
    assert (broker.lifecycle.stored_status(), broker.dead_letters.count("out")) == ("running", 1), said
    [entry] = broker.dead_letters.entries("out")
    assert entry.error_class == "schema"
    broker.close()


@pytest.mark.parametrize("place", ["delta"], indirect=True)
@pytest.mark.parametrize("schema", ["quarantine", "evolve"])
def test_a_letter_of_a_table_that_is_too_large_is_taken_once_it_was_written_anew(
    home: Path, place: Place, schema: str
) -> None:
    # Given a table that is larger than what is rewritten (a byte)
    small = Place("delta", {"path": "t", "rewrite-up-to": "1"}, place.rows, place.add)
    run(home, small, schema, {"n": 1})
    queue = "dead-letter-queue: {window-size: 0}"
    run(home, small, schema, {"n": 1}, {"n": 2**40}, more=queue)
    if schema == "evolve":
        assert "raise that, or rewrite the table" in letters()[0]["error"]
    assert place.by_n() == {1: {"n": 1}}
    there = DeltaTable(home / "t").to_pyarrow_table()
    wide = there.set_column(0, "n", there.column("n").cast(pa.int64()))
    write_deltalake(home / "t", wide, mode="overwrite", schema_mode="overwrite")
    with opened("p", "operator") as context:
        (outcome,) = redrive(context, Selection(classes=("schema",)), "me", wait=60.0)
    assert (outcome.redriven, outcome.again, place.by_n()[2**40]) == (1, 0, {"n": 2**40})
