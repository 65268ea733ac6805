"""Sets of GTIDs of both kinds, as the servers write them and as the library asks for them."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysqlreplication.gtid import GtidSet

from conduit_tasks.connectors.mysql.gtids import added, covers, normal

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "4e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("state", "gtid", "then"),
    [
        ("", "0-1-5", "0-1-5"),
        ("0-1-5", "0-2-6", "0-2-6"),
        ("0-1-5,3-1-2", "3-1-3", "0-1-5,3-1-3"),
        ("10-1-5", "9-1-1", "9-1-1,10-1-5"),
        ("", f"{A}:1", f"{A}:1"),
        (f"{A}:1-5", f"{A}:6", f"{A}:1-6"),
        (f"{A}:1-5:7", f"{A}:6", f"{A}:1-7"),
        (f"{A.upper()}:1-5,\n{B}:1", f"{B}:3", f"{A}:1-5,{B}:1:3"),
        (f"{A}:tag:1-2", f"{A}:3", f"{A}:3,{A}:tag:1-2"),
    ],
)
def test_a_transaction_is_added(state: str, gtid: str, then: str) -> None:
    assert added(state, gtid) == then
    assert covers(then, gtid)
    # Numbers of two servers in one domain are not compared.
    assert covers(then, state) is ((state, gtid) != ("0-1-5", "0-2-6"))
    assert normal(then) == then


@pytest.mark.parametrize(
    ("state", "other", "whether"),
    [
        ("0-1-5", "", True),
        ("", "0-1-5", False),
        ("0-1-5", "0-2-5", False),
        ("0-1-5,3-1-1", "3-1-2", False),
        (f"{A}:1-5", f"{A}:2-3", True),
        (f"{A}:1-5:9", f"{A}:4-9", False),
        (f"{A}:1-5", f"{B}:1", False),
    ],
)
def test_one_set_covers_another(state: str, other: str, whether: bool) -> None:
    assert covers(state, other) is whether


@pytest.mark.parametrize(("state", "gtid"), [("x", "0-1-1"), ("0-1-1", f"{A}:1"), (f"{A}:1", "0-1-1"), ("", "a:1")])
def test_what_is_no_set_of_this_kind_is_refused(state: str, gtid: str) -> None:
    with pytest.raises(ValueError, match="GTID"):
        added(state, gtid)


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 30))))
def test_sets_of_mysql_are_asked_for_as_they_are(numbers: list[tuple[str, int]]) -> None:
    state = ""
    for source, number in numbers:
        state = added(state, f"{source}:{number}")
    for source, number in {(s, n) for s in (A, B) for n in range(1, 31)}:
        assert covers(state, f"{source}:{number}") is ((source, number) in numbers)
    sent = GtidSet(state).encoded()
    assert normal(str(GtidSet.decode(io.BytesIO(sent)))) == state
