"""PostgreSQL's texts of values, whatever they are: a value that can be written, or an error of ours that names the
column and not what is in it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.postgres.values import _ARRAYS, _PLAIN, json_row
from conduit_tasks.errors import SourceError
from conduit_tasks.record import jsons
from tests.fuzz.hostile import DEPTHS, TEXT, damaged, ending, fuzzed

OIDS = st.sampled_from([*_PLAIN, *_ARRAYS, 25, 1700, 2950, 4_000_000_000])
SOUND = [
    ("t", 16, True),
    ("\\xff00", 17, "/wA="),
    ("-9223372036854775808", 20, -(1 << 63)),
    ("1e-07", 701, 1e-07),
    ("NaN", 701, "NaN"),
    ('{"a": [1, null]}', 3802, {"a": [1, None]}),
    ("2026-11-23 08:22:30.5+00", 1184, "2026-11-23T08:22:30.5Z"),
    ("infinity", 1184, "infinity"),
    ("{1,NULL,-3}", 1007, [1, None, -3]),
    ("[0:1]={{t,f},{f,t}}", 1000, [[True, False], [False, True]]),
    ('{"a,\\"}",NULL,"NULL"}', 1009, ['a,"}', None, "NULL"]),
    ('{"\\\\xff00"}', 1001, ["/wA="]),
    ('{"{\\"a\\": 1}"}', 3807, [{"a": 1}]),
]
TEXTS = [text.encode() for text, _, _ in SOUND]


def value(text: str, oid: int) -> Any:
    """What is read of it. Raises SourceError, which says neither what the text is nor a piece of it."""
    try:
        with ending():
            return json_row({"c": text}, {"c": oid})["c"]
    except SourceError as error:
        said = str(error)
    assert "postgres: column c" in said
    assert len(text) < 4 or text not in said
    raise SourceError(said)


@fuzzed
@given(data=TEXT.map(lambda text: text.encode(errors="replace")) | damaged(st.sampled_from(TEXTS)), oid=OIDS)
@example(data=b"9" * 5_000, oid=20)
@example(data=b"1" * 30, oid=114)
@example(data=b"", oid=17)
@example(data=b"", oid=1007)
@example(data=b"abcd", oid=17)
@example(data=b"yes", oid=16)
@example(data=rb'"\ud800"', oid=114)
@example(data=rb'{"\\ud800"}', oid=199)
def test_any_text_is_a_value_that_can_be_written_or_is_refused(data: bytes, oid: int) -> None:
    try:
        # As it comes from the server: in UTF-8.
        read = value(data.decode(errors="replace"), oid)
    except SourceError:
        return
    assert jsons.dumps({"c": read})


@fuzzed
@given(depth=DEPTHS, oid=OIDS, kind=st.sampled_from(["{}", "[]"]), digits=st.sampled_from(["1", "9" * 25]))
def test_however_deep_it_is(depth: int, oid: int, kind: str, digits: str) -> None:
    try:
        read = value(kind[0] * depth + digits + kind[1] * depth, oid)
    except SourceError:
        return
    assert jsons.dumps({"c": read})


@pytest.mark.parametrize(("text", "oid", "means"), SOUND)
def test_a_sound_one_means_what_postgresql_does_and_a_cut_array_nothing(text: str, oid: int, means: Any) -> None:
    assert value(text, oid) == means
    if oid in _ARRAYS:
        for end in (end for end in range(len(text)) if text[end - 1 : end] != "}"):
            with pytest.raises(SourceError):
                value(text[:end], oid)


@fuzzed
@given(number=st.integers(-(1 << 63), (1 << 63) - 1), fraction=st.floats())
def test_numbers_come_back_as_they_were(number: int, fraction: float) -> None:
    assert value(str(number), 20) == number
    assert value(f"{{{number},{number}}}", 1016) == [number, number]
    assert value(repr(fraction), 701) == (fraction if math.isfinite(fraction) else repr(fraction))
