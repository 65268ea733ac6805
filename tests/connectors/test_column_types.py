"""Types of columns: what they cannot hold exactly, and what is wider."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.connectors.arrow_rows import table_of
from conduit_tasks.connectors.column_types import ColumnType, in_postgres, new_kind, of_postgres, of_sqlite
from conduit_tasks.errors import DoesNotFit
from conduit_tasks.record.record import Record

NOT_FITTING = [
    ("smallint", 40_000, "bigint"),
    ("integer", 2**31, "bigint"),
    ("integer", -(2**31) - 1, "bigint"),
    ("integer", 1.5, None),
    ("integer", 2**63, None),
    ("bigint", 2**63, None),
    ("real", 0.123456789, "double precision"),
    ("real", 1e300, "double precision"),
    ("real", 2**24 + 1, "double precision"),
    ("real", "0.12345678901234567", None),
    ("double precision", 2**53 + 1, None),
    ("double precision", "0.10000000000000000001", None),
    ("double precision", "1e400", None),
    ("double precision", 10**400, None),
    ("numeric(10,2)", 1.555, "numeric(11,3)"),
    ("numeric(10,2)", "1.555", "numeric(11,3)"),
    ("numeric(10,2)", 123456789, "numeric(11,2)"),
    ("numeric(10,2)", 1e20, "numeric(23,2)"),
    ("numeric(2,2)", 1, "numeric(3,2)"),
    ("numeric(1000,0)", 0.5, None),
    ("character varying(3)", "abcd", "character varying(6)"),
    ("character varying(3)", "ab  ", "character varying(6)"),
    ("character varying(3)", "x" * 20_000_000, "character varying"),
    ("date", "2026-01-02T12:00:00", "timestamp without time zone"),
    ("date", "2026-01-02T12:00:00Z", "timestamp without time zone"),
    ("date", "2026-01-02T00:00:00+01:00", None),
    ("date", 20260102, None),
    ("timestamp without time zone", "2026-01-02T12:00:00+01:00", None),
    ("timestamp without time zone", "2026-01-02T12:00:00.1234567", None),
    ("timestamp(0) without time zone", "2026-01-02 12:00:00.5", "timestamp without time zone"),
    ("timestamp(3) with time zone", "2026-01-02T12:00:00.1234+01:00", "timestamp with time zone"),
    ("timestamp with time zone", 1_700_000_000, None),
]


@pytest.mark.parametrize(("type_", "value", "wider"), NOT_FITTING, ids=lambda each: str(each)[:40])
def test_a_value_that_would_be_changed_does_not_fit_and_a_wider_type_holds_it(
    type_: str, value: Any, wider: str | None
) -> None:
    of = of_postgres(type_)
    assert of is not None
    assert of.unfit(value)
    found = of.wider(value)
    assert (None if found is None else in_postgres(found)) == wider


FITTING = [
    ("integer", 2**31 - 1),
    ("integer", 2.0),
    ("integer", "no number: the server says so"),
    ("integer", True),
    ("real", 0.1),
    ("real", "2.50"),
    ("real", "NaN"),
    ("double precision", 2**53),
    ("double precision", 10**22),
    ("numeric(10,2)", "12345678.900"),
    ("numeric(10,2)", 0),
    ("numeric(10,2)", "0.00000"),
    ("numeric(10,2)", "NaN"),
    ("numeric", "1.23456789012345678901234567890"),
    ("character varying(3)", "abc"),
    ("character varying", "x" * 100),
    ("date", "2026-01-02"),
    ("date", "2026-01-02T00:00:00.000Z"),
    ("date", "yesterday"),
    ("timestamp without time zone", "2026-01-02T12:00:00.123456Z"),
    ("timestamp without time zone", "2026-01-02T12:00:00+00:00"),
    ("timestamp(0) with time zone", "2026-01-02T12:00:00.000+02"),
]


@pytest.mark.parametrize(("type_", "value"), FITTING, ids=lambda each: str(each)[:40])
def test_a_value_that_the_type_holds_exactly_fits(type_: str, value: Any) -> None:
    of = of_postgres(type_)
    assert of is not None
    assert of.unfit(value) == ""
    assert of.unfit(None) == ""


def test_types_that_lose_nothing_are_not_looked_at() -> None:
    assert [of_postgres(name) for name in ("text", "jsonb", "integer[]", "character(3)", "numeric(2,-3)")] == [None] * 5


@pytest.mark.parametrize(
    ("declared", "value", "fits"),
    [
        ("INT", 1.5, True),
        ("INT", "12345678901234567890123", False),
        ("DECIMAL(10,2)", "0.12345678901234567890", False),
        ("DECIMAL(10,2)", "9223372036854775807", True),
        ("DECIMAL(10,2)", 1.555, True),
        ("DOUBLE", 2**53 + 1, False),
        ("REAL", 7, True),
        ("VARCHAR(3)", "12345678901234567890123", True),
        ("POINT", "words", True),
        ("", 2**53 + 1, True),
    ],
)
def test_sqlite_changes_numbers_by_the_declared_type(declared: str, value: Any, fits: bool) -> None:
    of = of_sqlite(declared)
    assert (of is None or of.unfit(value) == "") is fits


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True], "bool"),
        ([1, 2], "int"),
        ([1, 2**63], "decimal"),
        ([1, 1.5], "float"),
        ([2**53 + 1, 1.5], "decimal"),
        (["a", 1], "text"),
        ([True, 1], "bool"),
        ([{}, []], "json"),
    ],
)
def test_the_values_of_a_new_field_give_its_column_a_type(values: list[Any], kind: str) -> None:
    assert new_kind(values) == kind


def rows(*values: Any) -> list[Record]:
    return [Record(b"1", after={"v": value}) for value in values]


@pytest.mark.parametrize(
    "values",
    [
        (1.5, True),
        (True, 1.5),
        (None, 1.5, False),
        ([1.5, True],),
        ({"a": 1.5}, {"a": True}),
        ({"a": [{"b": 1.5}, {"b": True}]},),
        (1, True),
    ],
)
def test_a_boolean_beside_a_fraction_is_no_fraction(values: Any) -> None:
    with pytest.raises(DoesNotFit, match="do not go together"):
        table_of(rows(*values), "payload")


def test_fractions_and_booleans_of_different_fields_are_rows() -> None:
    payload = {"a": 1.5, "b": True, "l": [None, [1.5]], "o": {"a": None, "b": True}}
    made = table_of(rows(payload, None, payload), "payload")
    assert pa.types.is_float64(made.column("v").type.field("a").type)
    assert made.to_pylist()[0] == {"v": payload}


def test_what_a_single_float_holds_bit_for_bit_fits_and_zero_fits_any_decimal() -> None:
    real = ColumnType("float", 32)
    assert real.unfit(0.10000000149011612) == real.unfit(0.1) == real.unfit(float("inf")) == ""
    assert "" not in {real.unfit(0.123456789), real.unfit(1e300)}
    # A decimal with more digits behind the point than in all
    small = ColumnType("decimal", 2, 5)
    assert small.unfit(0.00012) == small.unfit(0) == ""
    assert "" not in {small.unfit(0.00123), small.unfit(1), small.unfit(0.000001)}


@pytest.mark.parametrize("value", ["2026-01-01t10:00:00+05:00", "2026-01-01 10:00:00 +05:00"])
def test_a_zone_is_seen_however_it_is_written(value: str) -> None:
    assert ColumnType("timestamp").unfit(value) == "the column has no time zone"


@given(
    st.sampled_from([ColumnType("int", 16), ColumnType("float", 64), ColumnType("decimal", 5, 2)])
    | st.sampled_from([ColumnType("either", 64), ColumnType("date"), ColumnType("timestamp", 3)])
    | st.sampled_from([ColumnType("timestamp"), ColumnType("timestamptz"), ColumnType("timestamptz", 0)]),
    st.integers() | st.floats() | st.decimals() | st.text() | st.datetimes().map(str) | st.sampled_from([2**53, 1.555]),
)
def test_what_is_seen_to_fit_at_once_fits_also_when_it_is_looked_at_closely(type_: ColumnType, value: Any) -> None:
    if type_._plain(value):
        with patch.object(ColumnType, "_plain", lambda *_: False):
            assert type_.unfit(value) == ""
