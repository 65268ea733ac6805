"""Range sets in Python and in Lua against plain sets of integers."""

from __future__ import annotations

from importlib.resources import files

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.broker import Broker
from conduit_tasks.broker.ranges import RangeSet

numbers = st.sets(st.integers(0, 60), max_size=40)


def of(members: set[int]) -> RangeSet:
    return RangeSet.of((n, n) for n in members)


def members(ranges: RangeSet) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}


@given(numbers, numbers)
def test_ranges_compute_like_sets(a: set[int], b: set[int]) -> None:
    x, y = of(a), of(b)
    assert members(x.add(y)) == a | b
    assert members(x.subtract(y)) == a - b
    assert members(x.intersect(y)) == a & b
    assert members(x.complement(50)) == set(range(50)) - a
    assert x.contains(y) == (b <= a)
    assert x.disjoint(y) == a.isdisjoint(b)
    assert x.count == len(a)
    assert all((n in x) == (n in a) for n in range(62))


@given(numbers)
def test_the_text_form_is_canonical_and_reads_back(a: set[int]) -> None:
    text = str(of(a))
    assert RangeSet.parse(text) == of(a)
    bounds = [n for first, last in RangeSet.parse(text) for n in (first, last)]
    assert all(b - a > 1 for a, b in zip(bounds[1::2], bounds[2::2])), "ranges that touch are one"


SHARED = "".join(
    file.read_text()
    for file in (
        files("conduit_tasks.redis_client") / "prelude.lua",
        files("conduit_tasks.broker") / "scripts/_shared.lua",
    )
)
many = st.sets(st.integers(0, 700), max_size=500)


filled = st.builds(lambda n, gaps: set(range(n)) - gaps, st.integers(0, 60), st.sets(st.integers(0, 60), max_size=4))
"""Long ranges with few gaps, as what is confirmed has: several others lie within one of them."""


@given(many | numbers, many | numbers | filled, st.sampled_from([0, 97, 10**15]))
@example({4, 6, 7, 8}, set(range(9)), 0)
@example({4, 6, 7, 8, 11}, set(range(8)), 0)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None, max_examples=150
)
def test_lua_computes_as_python_does(broker: Broker, a: set[int], b: set[int], base: int) -> None:
    body = """
        local a, b = parse_ranges(ARGV[1]), ARGV[2]
        local said, all = united(b, a)
        return {subtract_ranges(b, a), said, all}"""
    x, y = of({n + base for n in a}), of({n + base for n in b})
    expected = "all" if y.contains(x) else "none" if x.disjoint(y) else "some"
    assert broker.redis.eval(SHARED + body, 0, str(x), str(y)) == [str(y.subtract(x)), expected, str(y.add(x))]


def test_each_range_of_a_large_set_is_found_by_its_first_and_by_its_last(broker: Broker) -> None:
    """Whatever place the halving comes by, a range that ends exactly where it is looked for is the one."""
    body = """
        local wrong = 0
        for n = 0, 999 do
          for _, x in ipairs({4 * n, 4 * n + 1}) do
            local _, first = range_from(ARGV[1], x, 1)
            if first ~= 4 * n then wrong = wrong + 1 end
          end
        end
        return wrong"""
    many = ",".join(f"{4 * n}-{4 * n + 1}" for n in range(1_000))
    assert broker.redis.eval(SHARED + body, 0, many) == 0


@pytest.mark.parametrize("place", [0, 49_999, 99_999])
def test_a_word_on_a_large_set_looks_at_few_of_its_ranges(broker: Broker, place: int) -> None:
    """Given a set of 100,000 ranges, then one more, wherever it lies, is found by looking at some dozen of them."""
    looks = """
        local looked, real = 0, string
        local function match(...) looked = looked + 1 return real.match(...) end
        local string = setmetatable({match = match}, {__index = real})
    """
    body = """
        local given = parse_ranges(ARGV[1])
        local said, all = united(ARGV[2], given)
        return {said, #all, subtract_ranges(all, given) == ARGV[2] and 1 or 0, looked}"""
    many = ",".join(f"{4 * n}-{4 * n + 1}" for n in range(100_000))
    more = f"{4 * place + 3}-{4 * place + 3}"
    said, _, same, looked = broker.redis.eval(looks + SHARED + body, 0, more, many)
    # It touches the one behind it; taken out again, that is whole.
    assert (said, same) == ("none", 1)
    assert looked < 150


@pytest.mark.parametrize("text", ["5", "1-2,", "a-b", "5-3", "-1-4", "1-2;4-5"])
def test_text_that_is_no_range_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a range"):
        RangeSet.parse(text)
