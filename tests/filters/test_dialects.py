"""Trigger filters in the dialects of the CloudEvents Subscriptions API (SEMANTICS T3)."""

from __future__ import annotations

from typing import Any

import pytest

from conduit_tasks.errors import ConfigError
from conduit_tasks.filters import compile_filters

EVENT = {"type": "flight.departed", "source": "flights/jfk", "carrier": "UA", "seats": 180, "open": True}


@pytest.mark.proves("T3")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([], True),
        ([{"exact": {"type": "flight.departed"}}], True),
        ([{"exact": {"type": "flight"}}], False),
        ([{"exact": {"type": "flight.departed", "carrier": "AA"}}], False),
        ([{"exact": {"absent": "x"}}], False),
        ([{"exact": {"seats": "180", "open": "true"}}], True),
        ([{"prefix": {"type": "flight.", "source": "flights/"}}], True),
        ([{"prefix": {"type": "departed"}}], False),
        ([{"suffix": {"type": ".departed"}}], True),
        ([{"suffix": {"type": "flight"}}], False),
        ([{"all": [{"exact": {"carrier": "UA"}}, {"prefix": {"type": "flight"}}]}], True),
        ([{"all": [{"exact": {"carrier": "UA"}}, {"prefix": {"type": "x"}}]}], False),
        ([{"any": [{"exact": {"carrier": "AA"}}, {"exact": {"carrier": "UA"}}]}], True),
        ([{"any": [{"exact": {"carrier": "AA"}}, {"exact": {"absent": "x"}}]}], False),
        ([{"not": {"exact": {"carrier": "AA"}}}], True),
        ([{"not": {"exact": {"absent": "x"}}}], True),
        ([{"not": {"all": [{"exact": {"carrier": "UA"}}]}}], False),
        ([{"exact": {"carrier": "UA"}}, {"not": {"prefix": {"type": "flight"}}}], False),
    ],
)
def test_a_filter_decides_as_the_specification_says(filters: list[dict[str, Any]], wanted: bool) -> None:
    assert compile_filters(filters).matches(EVENT) is wanted


def test_a_matcher_names_the_attributes_it_reads() -> None:
    matcher = compile_filters(
        [{"exact": {"a": "1"}}, {"any": [{"prefix": {"b": "2"}}, {"not": {"suffix": {"c": "3"}}}]}]
    )
    assert matcher.attributes == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("filters", "place"),
    [
        ({"exact": {"a": "b"}}, "filters: a list"),
        ([{"exact": {"a": "b"}, "prefix": {"a": "b"}}], r"filters\[0\]: a filter is a map with exactly one"),
        ([{"exakt": {"a": "b"}}], r"filters\[0\]: there is no dialect 'exakt'; did you mean exact\?"),
        ([{"exact": {"a": "b"}}, {"exact": {}}], r"filters\[1\].exact"),
        ([{"exact": {"a": 5}}], r"filters\[0\].exact.a: a text"),
        ([{"prefix": {"a": ""}}], r"filters\[0\].prefix.a"),
        ([{"suffix": {"data": "x"}}], r"filters\[0\].suffix: data is no attribute"),
        ([{"all": []}], r"filters\[0\].all"),
        ([{"any": [{"not": {"nor": {}}}]}], r"filters\[0\].any\[0\].not: there is no dialect"),
        ([{"not": [{"exact": {"a": "b"}}]}], r"filters\[0\].not: a filter is a map"),
    ],
)
def test_a_wrong_filter_is_refused_with_its_place(filters: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        compile_filters(filters)
