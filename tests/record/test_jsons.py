"""JSON of records: exact, bounded in depth, and never an error that is not ours."""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.errors import Unwritable
from conduit_tasks.record import jsons
from conduit_tasks.record.batches import deep_rows
from conduit_tasks.record.jsons import DEPTH

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 90), 1 << 90) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)  # fmt: skip


def deep(levels: int, leaf: Any = 1) -> Any:
    for n in range(levels):
        leaf = [leaf] if n % 2 else {"a": leaf}
    return leaf


@given(value=VALUES)
def test_what_is_written_is_read_again_to_the_digit(value: Any) -> None:
    for read in (jsons.loads, jsons.exact, json.loads):
        assert repr(read(jsons.dumps(value))) == repr(value)
    assert jsons.raw(value) == jsons.dumps(value)
    assert jsons.loads(jsons.dumps(value).decode()) == value


@given(text=st.binary(max_size=30) | st.text(st.characters(), max_size=30))
def test_any_text_is_read_or_refused(text: bytes | str) -> None:
    for read in (jsons.loads, jsons.exact):
        try:
            read(text)
        except jsons.JSONDecodeError:
            continue


def test_the_limit_of_depth_is_the_same_for_what_is_read_and_what_is_made() -> None:
    allowed, refused = jsons.raw(deep(DEPTH)), jsons.raw(deep(DEPTH + 1))
    assert jsons.loads(allowed) == deep(DEPTH)
    assert jsons.fault({"a": deep(DEPTH - 1)}) is None
    with pytest.raises(jsons.JSONDecodeError, match="nested deeper than 200"):
        jsons.loads(refused)
    assert "nested deeper than 200" in (jsons.fault({"a": deep(DEPTH)}) or "")
    assert "nested deeper than 200" in (jsons.fault({"a": deep(5000)}) or "")
    # And an envelope around what is allowed can be written
    assert jsons.dumps([{"payload": {"after": {"a": deep(DEPTH - 1)}}}])


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\udfff": 1}, {(1, 2): 3}, {"a": object()}, {"a": 10**5000}])
def test_what_is_no_json_is_unwritable(value: Any) -> None:
    with pytest.raises(Unwritable):
        jsons.dumps(value)
    with pytest.raises(Unwritable):
        jsons.dumps({"big": 1 << 70, **value})


def test_however_deep_a_parsed_value_is_its_text_is_kept() -> None:
    text = b'{"a":' * 500 + b'[1,{"b":18446744073709551616},[]]' + b"}" * 500
    assert jsons.raw(orjson.loads(text)) == text.replace(b"18446744073709551616", b"1.8446744073709552e+19")
    assert jsons.raw(jsons.exact(text)) == text


def test_other_parsers_read_every_large_number_as_it_was_written() -> None:
    value = {"a": [1 << 64, -(1 << 63) - 1, 1.5, True], 1 << 70: 2, "f": float("inf")}
    assert jsons.dumps(value) == b'{"a":[18446744073709551616,-9223372036854775809,1.5,true],"%d":2,"f":null}' % (
        1 << 70
    )


@given(
    parts=st.lists(
        st.one_of(st.integers(1, 40).map(lambda n: b"1" * n), st.binary(min_size=1, max_size=9)), max_size=12
    )
)
def test_long_runs_of_digits_are_found_wherever_they_lie(parts: list[bytes]) -> None:
    text = b"".join(parts)
    assert jsons.many_digits(text) == (re.search(rb"[0-9]{19}", text) is not None)


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"":', b"}")])
def test_the_shortest_text_that_is_too_deep_is_found_among_others(opening: bytes, closing: bytes) -> None:
    def nested(levels: int) -> bytes:
        return opening * levels + (b"1" if opening != b"[" else b"") + closing * levels

    texts = pa.array([nested(DEPTH), None, nested(DEPTH + 1), b"{}", nested(DEPTH)], pa.binary())

    assert list(deep_rows(texts)) == [2]
    assert list(deep_rows(texts.slice(1))) == [1]
    assert deep_rows(texts.slice(3)) == {}
