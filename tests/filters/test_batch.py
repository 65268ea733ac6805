"""The mask over whole batches says of every row what the matcher says of its view."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.filters import compile_filters
from conduit_tasks.record.cloudevents import view
from conduit_tasks.record.record import OPERATIONS, Origin, Record
from conduit_tasks.record.schema import spool_batch

ORIGINS = [
    Origin("p", "a", "", {"shared": "s", "opencdc.readAt": "1700000000000000000"}),
    Origin("p", "b", "", {"cloudevents.type": "made.up", "x": "1"}),
]
NAMES = ("x", "y", "shared", "cloudevents.x", "cloudevents.type", "cloudevents.subject")
VALUES = st.sampled_from(["1", "12", "2", "s", "k1"])
METADATA = st.dictionaries(st.sampled_from(NAMES), VALUES | st.none(), max_size=3)
KEYS = st.sampled_from([None, b"k1", b"k2", b"\xff", {"id": 1}])
ATTRIBUTES = st.sampled_from(["x", "y", "shared", "type", "source", "subject", "id", "time", "specversion", "absent"])
SIMPLE = st.builds(
    lambda dialect, attributes: {dialect: attributes},
    st.sampled_from(["exact", "prefix", "suffix"]),
    st.dictionaries(
        ATTRIBUTES,
        st.sampled_from(["1", "2", "s", "k1", "a.create", "p/b", "made.up", "2023", "1.0"]),
        min_size=1,
        max_size=2,
    ),
)
FILTERS = st.lists(
    st.recursive(
        SIMPLE,
        lambda inner: (
            st.builds(
                lambda dialect, several: {dialect: several},
                st.sampled_from(["all", "any"]),
                st.lists(inner, min_size=1, max_size=3),
            )
            | inner.map(lambda one: {"not": one})
        ),
        max_leaves=4,
    ),
    max_size=2,
)


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[int, Record]]:
    out = []
    for n in range(draw(st.integers(0, 12))):
        number = draw(st.integers(0, 1))
        own = draw(METADATA)
        # None hides what the slice has, and means nothing elsewhere.
        metadata: Any = {k: v for k, v in own.items() if v is not None or k in ORIGINS[number].metadata}
        operation = draw(st.sampled_from(OPERATIONS))
        out.append((number, Record(str(n).encode(), operation, metadata, draw(KEYS), origin=ORIGINS[number])))
    return out


@pytest.mark.proves("T3")
@settings(deadline=None, max_examples=150)
@given(rows(), FILTERS, st.integers(0, 3))
def test_the_mask_agrees_with_the_matcher_row_by_row(
    some: list[tuple[int, Record]], filters: list[dict[str, Any]], skip: int
) -> None:
    batch = spool_batch([n for n, _ in some], list(range(len(some))), [r for _, r in some]).slice(skip)
    matcher = compile_filters(filters)
    mask = matcher.mask(batch, ORIGINS)
    if not filters:
        assert mask is None
        return
    assert mask is not None
    expected = [matcher.matches(view(record, matcher.attributes)) for _, record in some[skip:]]
    assert mask.tolist() == expected


def test_many_distinct_values_in_several_attributes_are_told_apart() -> None:
    # Given more combinations of values than a dense table has room for
    letters = string.ascii_lowercase
    records = [
        Record(b"%d" % i, metadata={"a": f"a{i}", "b": f"b{i % 1500}", "c": letters[i % 26]}, origin=ORIGINS[0])
        for i in range(3000)
    ]
    matcher = compile_filters([{"suffix": {"a": "7"}}, {"prefix": {"b": "b1"}}, {"exact": {"c": "d"}}])
    # When the batch is masked
    mask = matcher.mask(spool_batch([0] * 3000, list(range(3000)), records), ORIGINS)
    # Then every row has its own answer
    assert mask is not None
    assert mask.tolist() == [matcher.matches(view(r)) for r in records]
    assert mask.any()
