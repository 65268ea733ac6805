"""`sql` and `python` over DataFrames, on a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.processors.base import FrameProcessor
from conduit_tasks.processors.registry import build
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import SPOOL_SCHEMA, spool_batch, to_records
from tests.processors.conftest import step

ORIGINS = [Origin("p", "c", ""), Origin("p", "c", "")]


def frame_of(spark: Any, *rows: tuple[int, int, Record]) -> Any:
    import pyarrow as pa

    batch = spool_batch([s for s, _, _ in rows], [n for _, n, _ in rows], [r for _, _, r in rows])
    return spark.createDataFrame(pa.Table.from_batches([batch]))


def examples(spark: Any) -> Any:
    """Out of order on purpose: the result must be sorted all the same."""
    return frame_of(
        spark,
        (1, 0, Record(b"p3", key=b"raw", after={"carrier": "DL", "delay": None, "legs": []})),
        (0, 1, Record(b"p2", "update", before={"x": 1}, after=b"no json \xff")),
        (
            0,
            0,
            Record(b"p1", metadata={"m": "1"}, key={"id": 1}, after={"carrier": "UA", "delay": 70, "legs": ["A", "B"]}),
        ),
        (0, 2, Record(b"p4", "delete")),
    )


def apply(spark: Any, frame: Any, query: str, **settings: str) -> list[tuple[int, int, Record]]:
    processor = build(step("sql", query=query, **settings))
    assert isinstance(processor, FrameProcessor)
    return rows_of(processor.apply(spark, frame))


def rows_of(frame: Any) -> list[tuple[int, int, Record]]:
    assert frame.columns == SPOOL_SCHEMA.names
    batches = frame.toArrow().cast(SPOOL_SCHEMA).combine_chunks().to_batches()
    out = []
    for batch in batches:
        slices, numbers = batch.column("slice").to_pylist(), batch.column("n").to_pylist()
        out += list(zip(slices, numbers, to_records(batch, ORIGINS)))
    return out


def by_number(rows: list[tuple[int, int, Record]]) -> list[tuple[int, int, int]]:
    return [(s, n, r.ordinal) for s, n, r in rows]


def test_selecting_everything_changes_nothing_but_the_order(spark: Any) -> None:
    rows = apply(spark, examples(spark), "SELECT * FROM records")
    assert by_number(rows) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0)]
    assert [r.to_opencdc() for _, _, r in rows] == [
        Record(
            b"p1", metadata={"m": "1"}, key={"id": 1}, after={"carrier": "UA", "delay": 70, "legs": ["A", "B"]}
        ).to_opencdc(),
        Record(b"p2", "update", before={"x": 1}, after=b"no json \xff").to_opencdc(),
        Record(b"p4", "delete").to_opencdc(),
        Record(b"p3", key=b"raw", after={"carrier": "DL", "delay": None, "legs": []}).to_opencdc(),
    ]


@pytest.mark.proves("C4")
def test_a_missing_id_is_filtered_and_columns_not_selected_stay(spark: Any) -> None:
    rows = apply(spark, examples(spark), "SELECT _id FROM records WHERE payload LIKE '%carrier%'")
    assert by_number(rows) == [(0, 0, 0), (1, 0, 0)]
    assert rows[0][2].metadata == {"m": "1"}
    assert rows[0][2].key == {"id": 1}


@pytest.mark.slow
def test_changed_columns_are_taken_over(spark: Any) -> None:
    rows = apply(
        spark,
        examples(spark),
        """
        WITH late AS (SELECT * FROM records WHERE after.delay > 60)
        SELECT * EXCEPT (operation, metadata, key, after),
               'snapshot' AS operation, map('late', 'yes') AS metadata, upper('k') AS key,
               named_struct('carrier', lower(after.carrier), 'none', CAST(NULL AS INT)) AS after
        FROM late AS l
        """,
        schema="carrier STRING, delay INT",
    )
    [(_, _, out)] = rows
    assert (out.operation, out.metadata, out.key) == ("snapshot", {"late": "yes"}, b"K")
    assert out.after == {"carrier": "ua", "none": None}
    assert out.position == b"p1"


@pytest.mark.slow
def test_text_stays_structured_only_where_it_is_an_object(spark: Any) -> None:
    query = "SELECT * EXCEPT (payload), {} AS payload FROM records WHERE _id = '0:0:0'"
    assert apply(spark, examples(spark), query.format("""'{"x": 1}'"""))[0][2].after == {"x": 1}
    assert apply(spark, examples(spark), query.format("'{broken'"))[0][2].after == b"{broken"
    assert apply(spark, examples(spark), query.format("NULL"))[0][2].after is None
    assert apply(spark, examples(spark), query.format("CAST('{}' AS BINARY)"))[0][2].after == b"{}"


@pytest.mark.proves("C9", "T8")
def test_repeated_ids_become_derived_records_in_their_order(spark: Any) -> None:
    # Given a record with two legs, exploded
    query = """
        SELECT * EXCEPT (payload, after, leg), to_json(named_struct('leg', leg)) AS payload
        FROM records LATERAL VIEW OUTER explode(after.legs) AS leg
    """
    rows = apply(spark, examples(spark), query, schema="legs ARRAY<STRING>")
    # Then its descendants are numbered from 0, the others keep their number
    assert by_number(rows) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 2, 0), (1, 0, 0)]
    assert [r.after for _, _, r in rows[:2]] == [{"leg": "A"}, {"leg": "B"}]
    assert len({r.id for _, _, r in rows}) == 5


@pytest.mark.proves("T8")
def test_records_derived_before_keep_their_ordinals_unless_derived_again(spark: Any) -> None:
    rows = [(0, 0, Record(b"1", after={"l": ["a"]}, ordinal=n)) for n in (0, 2)]
    kept = apply(
        spark,
        frame_of(spark, *rows),
        "SELECT _id, _row, explode(after.l) AS key FROM records",
        schema="l ARRAY<STRING>",
    )
    assert by_number(kept) == [(0, 0, 0), (0, 0, 2)]
    rows[1][2].after = {"l": ["a", "b"]}
    again = apply(
        spark,
        frame_of(spark, *rows),
        "SELECT _id, _row, explode(after.l) AS key FROM records",
        schema="l ARRAY<STRING>",
    )
    assert by_number(again) == [(0, 0, 0), (0, 0, 1), (0, 0, 2)]
    assert [r.key for _, _, r in again] == [b"a", b"a", b"b"]


@pytest.mark.slow
def test_a_static_table_may_be_joined(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "airlines.json").write_text('{"code":"UA","name":"United"}\n{"code":"AA","name":"American"}\n')
    query = f"""
        SELECT r.* EXCEPT (metadata), map('name', a.name) AS metadata
        FROM records r JOIN (SELECT code, max(name) AS name FROM json.`{tmp_path}` GROUP BY code) a
          ON get_json_object(r.payload, '$.carrier') = a.code
    """
    [(_, _, out)] = apply(spark, examples(spark), query)
    assert out.metadata == {"name": "United"}


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT max(_id) AS _id FROM records", "aggregates"),
        ("SELECT _id FROM records GROUP BY _id", "aggregates"),
        ("SELECT DISTINCT _id FROM records", "DISTINCT"),
        ("SELECT * FROM records ORDER BY key", "sorts"),
        ("SELECT * FROM records LIMIT 1", "LIMIT"),
        ("SELECT _id, lag(key) OVER (ORDER BY _id) AS key FROM records", "window"),
        ("SELECT * FROM records UNION ALL SELECT * FROM records", "UNION"),
        ("SELECT a.* FROM records a JOIN records b ON a.key = b.key", "itself"),
        ("SELECT r.* FROM records r RIGHT JOIN VALUES ('x') AS t(k) ON r.key = t.k", "RIGHT OUTER"),
        ("SELECT * FROM records WHERE key IN (SELECT key FROM records WHERE operation = 'delete')", "subquery"),
        ("WITH r AS (SELECT * FROM records LIMIT 2) SELECT * FROM r", "LIMIT"),
        ("SELECT 1 AS _id", "does not read the view"),
        ("SELECT key FROM records", "must keep the column _id"),
        ("SELECT 'x' AS _id FROM records", "_id says which record"),
        ("SELECT _id, CAST('x' AS BINARY) AS position FROM records", "position belongs"),
        ("SELECT *, 1 AS extra FROM records", "no column extra"),
        ("SELECT *, 'x' AS key FROM records", "key twice"),
        ("SELECT _id, 5 AS key FROM records", "key must be text"),
        ("SELECT _id, 5 AS operation FROM records", "operation must be a string"),
        ("SELECT _id, nosuch FROM records", "does not take the statement"),
        ("SELEC _id", "does not take the statement"),
        ("DROP VIEW records", "must be a query"),
        ("CREATE TABLE t AS SELECT * FROM records", "must be a query"),
        ("SET spark.sql.ansi.enabled = false", "must be a query"),
    ],
)
def test_a_statement_that_loses_the_records_is_refused_before_it_runs(spark: Any, query: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        apply(spark, examples(spark), query)


def test_payload_and_after_cannot_both_be_changed(spark: Any) -> None:
    query = "SELECT _id, 'x' AS payload, named_struct('a', 1) AS after FROM records"
    with pytest.raises(ConfigError, match="same data"):
        apply(spark, examples(spark), query, schema="a INT")


@pytest.mark.proves("C9")
def test_a_python_function_sees_the_same_view(spark: Any, home: Path) -> None:
    # Given a function that filters, repeats and marks in ways no plan can be read from
    (home / "frame_functions.py").write_text(
        "from pyspark.sql import functions as f\n"
        "def twice(spark, df):\n"
        "    some = df.where('payload is not null').select('_id', f.lit('k').alias('key'), 'payload')\n"
        "    return some.union(some.where(\"_id = '0:0:0'\")).orderBy(f.desc('_id'))\n"
        "def forged(spark, df):\n"
        "    return df.select(f.lit('9:9:9').alias('_id'))\n"
        "def nothing(spark, df):\n"
        "    return 5\n"
    )
    # When it is applied
    processor = build(step("python", call="frame_functions:twice", mode="frame"))
    assert isinstance(processor, FrameProcessor)
    rows = rows_of(processor.apply(spark, examples(spark)))
    # Then its result is taken over by id, and data it passed on unchanged keeps its bytes and shape
    assert by_number(rows) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    assert {r.key for _, _, r in rows} == {b"k"}
    assert rows[0][2].after == {"carrier": "UA", "delay": 70, "legs": ["A", "B"]}
    assert rows[2][2].after == b"no json \xff"
    with pytest.raises(ConfigError, match="DataFrame"):
        build(step("python", call="frame_functions:nothing", mode="frame")).apply(spark, examples(spark))  # type: ignore[union-attr]
    forged = build(step("python", call="frame_functions:forged", mode="frame"))
    assert isinstance(forged, FrameProcessor)
    with pytest.raises(Exception, match="_id of no record"):
        forged.apply(spark, examples(spark)).collect()
