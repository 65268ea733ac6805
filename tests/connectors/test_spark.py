"""Spark's own formats as a source and a destination, in a real session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.connectors.base import Limit
from conduit_tasks.errors import ConfigError, Refused, SourceError
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import to_records
from conduit_tasks.spark.connector import SparkDestination, SparkSource
from tests.connectors.test_parquet import rows
from tests.micro_batch.harness import payloads, run_until_quiet, write_pipeline

ORIGIN = Origin("p", "in", "")


def test_both_sides_keep_the_contract(home: Path, spark: Any) -> None:
    both = {"format": "json", "path": "out"}
    schema = "id STRING, n BIGINT, half DOUBLE, text STRING, tags ARRAY<STRING>, no STRING"
    accept("spark", source={**both, "column": "n", "schema": schema}, destination=both, records=4).require()


def step(source: SparkSource, position: dict[str, Any], most: int) -> tuple[list[Record], dict[str, Any]]:
    [slice] = source.plan(position, Limit(records=most))
    records = [r for batch in source.read(slice) for r in to_records(batch, ORIGIN)]
    return records, {"": json.loads(json.dumps(source.reached(slice)))}


@pytest.mark.proves("C9")
@pytest.mark.parametrize("column", ["n", "at", "day"])
def test_rows_come_in_the_order_of_the_column_and_those_of_one_value_together(
    home: Path, spark: Any, column: str
) -> None:
    # Given eight rows, two of each value
    frame = spark.sql(
        "SELECT id AS i, id div 2 AS n, timestamp_micros(1362096000000001 + (id div 2) * 1000) AS at, "
        "date_add(DATE '2013-03-01', CAST(id div 2 AS INT)) AS day FROM range(8)"
    )
    frame.write.format("orc").save(str(home / "in"))
    source = SparkSource({"format": "orc", "path": "in", "column": column, "key": "i"})
    # When three are asked for at a time
    first, position = step(source, {}, 3)
    second, position = step(source, position, 3)
    # Then those that share a value with the third come with it, and nothing comes twice
    assert sorted(r.after["i"] for r in first) == [0, 1, 2, 3]  # type: ignore[index]  # structured
    assert sorted(r.after["i"] for r in second) == [4, 5, 6, 7]  # type: ignore[index]  # structured
    assert [r.after["n"] for r in first + second] == [0, 0, 1, 1, 2, 2, 3, 3]  # type: ignore[index]  # structured
    assert len({r.position for r in first + second}) == 8
    # And behind them there is nothing until something is added
    assert step(source, position, 3) == ([], position)
    frame.withColumns({name: frame[name] for name in frame.columns}).where("i = 0").selectExpr(
        "100 AS i", "n + 9 AS n", "at + INTERVAL 1 HOUR AS at", "date_add(day, 9) AS day"
    ).write.format("orc").mode("append").save(str(home / "in"))
    assert [r.after["i"] for r in step(source, position, 3)[0]] == [100]  # type: ignore[index]  # structured


@pytest.mark.parametrize("column", ["n", "at", "name"])
def test_the_rows_of_a_micro_batch_pass_through_the_driver_in_pages_of_some_bytes(
    home: Path, spark: Any, column: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 60 rows of 10 KB and some null columns, three of each value, and pages of 100 KB
    spark.sql(
        "SELECT id AS i, id div 3 AS n, timestamp_micros((id div 3) * 1000) AS at, lpad(id div 3, 4, '0') AS name, "
        "repeat('x', 9000) AS text, array(repeat('y', 1000)) AS `odd name`, CAST(null AS STRING) AS no FROM range(60)"
    ).write.format("orc").save(str(home / "in"))
    monkeypatch.setattr("conduit_tasks.spark.connector.PAGE", 100_000)
    tables = []
    batches = SparkSource._batches

    def seen(self: SparkSource, table: Any) -> Any:
        tables.append(table)
        return batches(self, table)

    monkeypatch.setattr(SparkSource, "_batches", seen)
    source = SparkSource({"format": "orc", "path": "in", "column": column})
    # When they are read
    records, position = step(source, {}, 1000)
    # Then no table has more than two values beyond a page, all rows of a value are in one, and nothing is missing
    assert len(tables) >= 6
    assert max(table.nbytes for table in tables) < 100_000 + 3 * 10_100
    assert all(table.num_rows % 3 == 0 for table in tables)
    assert [r.after["n"] for r in records] == [i // 3 for i in range(60)]  # type: ignore[index]  # structured
    assert sorted(r.after["i"] for r in records) == list(range(60))  # type: ignore[index]  # structured
    assert len({r.position for r in records}) == 60
    assert step(source, position, 1000) == ([], position)


@pytest.mark.usefixtures("spark")
def test_rows_are_appended_and_what_does_not_fit_is_refused(home: Path, spark: Any) -> None:
    out = SparkDestination({"format": "orc", "path": "out", "partition-by": "day"})
    out.open(None)
    out.write(rows({"n": 1, "day": "a", "none": None}))
    out.write(rows({"n": 2, "day": "b"}))
    out.close()
    assert sorted(row.n for row in spark.read.orc(str(home / "out")).collect()) == [1, 2]
    with pytest.raises(Refused, match="no row"):
        out.write(rows(b"raw"))
    with pytest.raises(Refused, match="cannot be appended"):
        SparkDestination({"format": "csv", "path": "c"}).write(rows({"nested": {"x": 1}}))


@pytest.mark.usefixtures("spark")
def test_what_spark_cannot_read_is_named_and_options_stay_secret(home: Path, spark: Any) -> None:
    spark.range(3).write.format("json").save(str(home / "in"))
    for settings, said in (
        ({"format": "json", "path": "in", "column": "nosuch"}, "no column 'nosuch'"),
        ({"format": "nosuch", "path": "in", "column": "id"}, "cannot be read"),
        (
            {"format": "jdbc", "column": "id", "options.url": "jdbc:x://s3cret", "options.dbtable": "t"},
            "cannot be read",
        ),
    ):
        with pytest.raises(SourceError, match=said) as raised:
            step(SparkSource(settings), {}, 1)
        assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigError, match="column"):
        SparkSource({"format": "json"})


@pytest.mark.proves("C10", "I3")
def test_a_pipeline_from_format_to_format(home: Path, anywhere: Any) -> None:
    anywhere.range(5).selectExpr("id AS n", "CAST(id * 1.5 AS DECIMAL(5,1)) AS price").write.json(str(home / "in"))
    write_pipeline(
        home,
        "p",
        """
version: "2.2"
pipelines:
  - id: p
    micro-batch: {max-records: 3}
    connectors:
      - {id: in, type: source, plugin: spark, settings: {format: json, path: in, column: n}}
      - {id: table, type: destination, plugin: spark, settings: {format: parquet, path: out}}
      - {id: lines, type: destination, plugin: file, settings: {path: out.jsonl, format: payload}}
""",
    )
    with pytest.raises(AssertionError, match="not quiet"):
        # Only Spark can say whether there is more: such a source is asked at every run
        run_until_quiet("p", most=4)
    assert [row["n"] for row in payloads(home / "out.jsonl")] == [0, 1, 2, 3, 4]
    assert sorted(row.n for row in anywhere.read.parquet(str(home / "out")).collect()) == [0, 1, 2, 3, 4]
