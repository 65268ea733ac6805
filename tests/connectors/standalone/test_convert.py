"""Structures on their way to a connector: written by hand, and what the library of the protocol's format reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.connectors.standalone.convert import EXACT, _data, _object
from conduit_tasks.connectors.standalone.messages import message
from conduit_tasks.errors import RecordError

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
values = st.recursive(
    st.none() | st.booleans() | texts | st.integers(-EXACT, EXACT) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def read(encoded: bytes) -> Any:
    """What the library makes of it: a message `Data`, whose structure is its field 2."""
    found = message("opencdc.v1.Data").FromString(encoded)
    assert found.HasField("structured_data")
    return _object(found.structured_data)


@given(st.dictionaries(texts, values, max_size=5))
def test_a_structure_is_read_as_it_was_written(value: dict[str, Any]) -> None:
    assert read(_data(value)) == value


def test_long_and_deep_structures_are_read_as_they_were_written() -> None:
    deep: Any = "x" * 70_000
    for _ in range(15):
        deep = {"inner": [deep]}
    wide = {f"field {n}": n for n in range(3_000)}
    assert read(_data({"wide": wide, "deep": deep})) == {"wide": wide, "deep": deep}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (EXACT + 1, "'n' is 9007199254740993, which the connector protocol cannot hold exactly"),
        (-(10**400), "'n' is a whole number of 1329 bits, which"),
        (10**5000, "'n' is a whole number of 16610 bits, which"),
        (b"bytes", "'n' is bytes, which"),
    ],
    ids=["more than a double", "more than the largest", "more digits than Python writes", "bytes"],
)
def test_what_the_protocol_cannot_hold_is_refused_by_its_name(value: Any, says: str) -> None:
    with pytest.raises(RecordError, match=says):
        _data({"a": [{"n": value}]})


@pytest.mark.parametrize("value", [EXACT, -EXACT, 2 * EXACT, 10**22])
def test_whole_numbers_that_are_doubles_pass(value: int) -> None:
    assert read(_data({"n": value})) == {"n": value}
