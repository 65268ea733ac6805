"""Records through Arrow and back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.record.record import OPERATIONS, Origin, Record
from conduit_tasks.record.schema import part_column, spool_batch, to_records

ORIGINS = [Origin("p", "c", "0"), Origin("p", "c", "1", {"shared": "1"})]
DATA = (
    st.none() | st.binary(max_size=3) | st.dictionaries(st.text(max_size=3), st.integers(0, 9) | st.none(), max_size=2)
)
RECORDS = st.builds(
    Record,
    st.binary(max_size=3),
    st.sampled_from(OPERATIONS),
    st.dictionaries(st.sampled_from(["a", "b"]), st.text(max_size=3), max_size=2),
    DATA,
    DATA,
    DATA,
    st.integers(0, 3),
    st.sampled_from(ORIGINS),
)


@settings(deadline=None)
@given(st.lists(RECORDS, max_size=6), st.integers(0, 3))
def test_records_survive_the_spool(records: list[Record], skip: int) -> None:
    slices = [ORIGINS.index(r.origin) for r in records]
    batch = spool_batch(slices, list(range(len(records))), records).slice(skip)
    again = to_records(batch, ORIGINS)
    assert again == records[skip:]
    assert len({id(r.metadata) for r in again}) == len(again)


def test_how_deep_a_text_is_matters_only_where_it_is_structured() -> None:
    deep = b'{"a":' * 500 + b"1" + b"}" * 500
    column, bits = part_column("after", [{"a": 1}, deep])
    assert column.to_pylist() == [b'{"a":1}', deep]
    assert bits is not None
    assert bits.tolist() == [4, 0]
