"""Values of records in the columns of a Delta table: exactly, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from conduit_tasks.errors import DoesNotFit, Refused
from tests.connectors.test_delta import destination, rows

PRICES = pa.schema(
    [
        pa.field("n", pa.int64()),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("small", pa.int32()),
        pa.field("ratio", pa.float32()),
        pa.field("exact", pa.float64()),
        pa.field("on", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("day", pa.date32()),
        pa.field("paid", pa.list_(pa.struct([pa.field("sum", pa.decimal128(10, 2)), pa.field("by", pa.string())]))),
    ]
)


def held(home: Path) -> dict[int, dict[str, Any]]:
    return {row["n"]: row for row in DeltaTable(home / "t").to_pyarrow_table().to_pylist()}


def written(home: Path, *payloads: Any, **settings: str) -> dict[int, dict[str, Any]]:
    out = destination(**settings)
    out.open(None)
    for payload in payloads:
        out.write(rows(payload, numbered=False))
    return held(home)


NEW_FIELDS = [
    ({"o": {"a": 1}}, {"o": {"a": 1, "b": "x"}}, "o.b"),
    ({"o": {"a": 1}}, {"o": {"b": {"c": 2}}}, "o.b"),
    ({"o": {"a": {"b": 1}}}, {"o": {"a": {"b": 1, "c": [2]}}}, "o.a.c"),
    ({"o": [{"a": 1}]}, {"o": [{"a": 1, "b": "x"}, {"a": 2}]}, "o.element.b"),
    ({"o": {"p": [{"a": 1}]}}, {"o": {"p": [{"b": True}]}}, "o.p.element.b"),
]


@pytest.mark.parametrize(("first", "second", "name"), NEW_FIELDS, ids=[name for *_, name in NEW_FIELDS])
def test_a_new_field_within_a_column_becomes_part_of_it_or_is_refused(
    home: Path, first: Any, second: Any, name: str
) -> None:
    # Given a table with a column of objects
    written(home, {"n": 1, **first})
    # When the columns are fixed, then a record with another field is refused
    with pytest.raises(Refused, match=f"no column '{name}'"):
        written(home, {"n": 2, **second}, schema="fixed")
    # When they are merged, then the field is there
    assert _without_nulls(written(home, {"n": 2, **second})) == {1: {"n": 1, **first}, 2: {"n": 2, **second}}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def test_a_field_without_a_value_gets_its_type_from_the_first_value(home: Path) -> None:
    written(home, {"n": 1, "o": {"a": 1, "b": None, "c": []}, "l": [], "e": {}})
    columns = pa.schema(DeltaTable(home / "t").schema().to_arrow())
    assert (columns.names, [field.name for field in columns.field("o").type]) == (["n", "o"], ["a"])
    found = written(home, {"n": 2, "o": {"b": "x", "c": [1]}, "l": [{"d": 1.5}], "e": {"f": True}})
    assert found[2] == {"n": 2, "o": {"a": None, "b": "x", "c": [1]}, "l": [{"d": 1.5}], "e": {"f": True}}
    # Null is no new field
    assert written(home, {"n": 3, "o": {"a": 3, "z": None}}, schema="fixed")[3]["o"] == {"a": 3, "b": None, "c": None}


def test_a_field_whose_column_another_program_left_without_a_type_gets_one(home: Path) -> None:
    first = pa.table({"n": [1], "o": pa.array([{"a": 1, "b": None}]), "l": pa.array([[]])})
    write_deltalake(home / "t", first, mode="append")
    with pytest.raises(Refused, match="no column 'o"):
        written(home, {"n": 2, "o": {"b": "x"}}, schema="fixed")
    found = written(home, {"n": 2, "o": {"a": 2, "b": "x"}, "l": [{"c": 1}]}, {"n": 3, "o": {"b": None}, "l": []})
    assert found[2] == {"n": 2, "o": {"a": 2, "b": "x"}, "l": [{"c": 1}]}
    assert found[3] == {"n": 3, "o": {"a": None, "b": None}, "l": []}


def test_a_row_that_breaks_a_constraint_of_the_table_is_refused(home: Path) -> None:
    columns = pa.schema([pa.field("n", pa.int64()), pa.field("who", pa.string(), nullable=False)])
    write_deltalake(home / "t", columns.empty_table())
    DeltaTable(home / "t").alter.add_constraint({"positive": "n > 0"})
    out = destination()
    out.open(None)
    for payload in ({"n": 1}, {"n": 1, "who": None}):
        with pytest.raises(DoesNotFit, match="'who' has no value"):
            out.write(rows(payload))
    with pytest.raises(Refused, match="a constraint of the table"):
        out.write(rows({"n": -1, "who": "x"}))
    out.write(rows({"n": 1, "who": "x"}))
    assert held(home) == {1: {"n": 1, "who": "x"}}


@pytest.mark.parametrize("payload", [{"o": {"b": 1, "B": 2}}, {"o": {"A": 1}}, {"l": [{"x": 1, "X": 2}]}])
def test_fields_within_a_column_that_differ_in_case_only_are_refused(home: Path, payload: Any) -> None:
    written(home, {"n": 1, "o": {"a": 1}})
    with pytest.raises(Refused, match="differ in case only"):
        written(home, {"n": 2, **payload})


def test_a_number_in_a_column_of_texts_is_the_same_whatever_stands_beside_it(home: Path) -> None:
    # Given a column of texts, and whole numbers that come alone, or in one write with a fraction
    written(home, {"n": 0, "t": "x"})
    out = destination()
    out.open(None)
    for n, values in enumerate(([7], [7, 0.5], [10**15, 0.5], [1e20, None]), 1):
        out.write(rows(*({"n": 10 * n + m, "t": value} for m, value in enumerate(values)), numbered=False))
    found = [row["t"] for _, row in sorted(held(home).items())]
    assert found == ["x", "7", "7", "0.5", "1000000000000000", "0.5", "1e+20", None]


FITTING = [
    ("price", 3, "3.00"),
    ("price", 2.5, "2.50"),
    ("price", "12.300", "12.30"),
    ("small", "12", "12"),
    ("small", 2.0, "2"),
    ("ratio", 0.1, "0.10000000149011612"),
    ("ratio", "2.5e3", "2500.0"),
    ("exact", "0.1", "0.1"),
    ("exact", "NaN", "nan"),
    ("on", 1, "True"),
    ("at", "2026-01-02T03:04:05.123456+01:00", "2026-01-02 02:04:05.123456+00:00"),
    ("day", "2026-01-02", "2026-01-02"),
    ("paid", [{"sum": 1}, {"sum": 1.5, "by": "card"}, None], None),
]


@pytest.mark.parametrize(("name", "value", "text"), FITTING)
def test_a_value_that_the_column_holds_exactly_is_written(home: Path, name: str, value: Any, text: str) -> None:
    write_deltalake(home / "t", PRICES.empty_table())
    found = written(home, {"n": 1, name: value})[1][name]
    if name == "paid":
        assert [each and (str(each["sum"]), each["by"]) for each in found] == [("1.00", None), ("1.50", "card"), None]
    else:
        assert str(found) == text


NOT_FITTING = [
    ("price", 1.555),
    ("price", "1.555"),
    ("price", 123456789),
    ("price", True),
    ("small", 2**40),
    ("small", 1.5),
    ("small", "0x10"),
    ("small", "1.5"),
    ("ratio", 0.123456789),
    ("ratio", 1e300),
    ("ratio", 2**24 + 1),
    ("exact", 2**53 + 1),
    ("exact", "1e400"),
    ("exact", "0.12345678901234567890123"),
    ("on", 7),
    ("on", 0.5),
    ("at", 1764000000),
    ("at", "2026-01-02T03:04:05.123456789Z"),
    ("day", "2026-01-02T12:00:00"),
    ("paid", [{"sum": 0.001}]),
    ("paid", {"sum": 1}),
]


@pytest.mark.parametrize(("name", "value"), NOT_FITTING)
def test_a_value_that_the_column_would_change_is_refused(home: Path, name: str, value: Any) -> None:
    write_deltalake(home / "t", PRICES.empty_table())
    with pytest.raises(Refused, match=f"field '{name}' is no .*, as the column is"):
        written(home, {"n": 1, name: value})
    assert held(home) == {}
