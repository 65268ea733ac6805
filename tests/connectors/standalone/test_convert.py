"""Structures on their way to a connector: written by hand, and what the library of the protocol's format reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conduit_tasks.connectors.standalone.convert import EXACT, _data, _object, batch_of, encoded
from conduit_tasks.connectors.standalone.messages import message
from conduit_tasks.errors import RecordError
from conduit_tasks.record import jsons
from conduit_tasks.record.record import Record

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


@pytest.mark.slow
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


def test_what_is_as_deep_as_json_may_be_is_written_wherever_it_is_called() -> None:
    """As deep as JSON can be written, in a stack that is some hundred calls deep, as a Spark worker's is."""
    deep: Any = 1
    for _ in range(jsons.DEPTH - 2):
        deep = {"a": deep}

    def called(calls: int) -> bytes:
        return called(calls - 1) if calls else _data({"deep": jsons.loads(jsons.dumps(deep))})

    assert len(called(400)) > jsons.DEPTH


@pytest.mark.parametrize(
    "record",
    [
        Record(b"1", after={"n": "\ud800"}),
        Record(b"1", after={"\ud800": 1}),
        Record(b"1", after=b"", metadata={"n": "\ud800"}),
        Record(b"1", after=b"", metadata={"\ud800": "n"}),
    ],
    ids=["a value", "a field", "metadata", "a name of metadata"],
)
def test_half_of_a_surrogate_pair_is_refused(record: Record) -> None:
    """A processor of the destination may make one; no text of the protocol has it."""
    with pytest.raises(RecordError, match="half of a surrogate pair"):
        encoded(record)


@pytest.mark.parametrize("value", [EXACT, -EXACT, 2 * EXACT, 10**22])
def test_whole_numbers_that_are_doubles_pass(value: int) -> None:
    assert read(_data({"n": value})) == {"n": value}


@pytest.mark.parametrize("operation", [9, -1])
def test_a_record_of_an_unknown_operation_says_so_and_the_others_are_as_they_were(operation: int) -> None:
    # Given records of a connector, the second of which does what OpenCDC does not know
    record = message("opencdc.v1.Record")
    records = [record(position=b"%d" % n, operation=n, metadata={"n": str(n)}) for n in (0, 1, 2, 3, 4)]
    records[1].operation = operation
    records[1].payload.after.structured_data.update({"a": [float("nan")]})
    # Then it has the error, which makes a dead letter of it, and the others are as they were
    batch = batch_of(records, None)  # type: ignore[arg-type]
    metadata = [dict(m) for m in batch.column("metadata").to_pylist()]
    assert metadata[1].pop("conduit.error") == f"operation {operation} is none of create, update, delete, snapshot"
    assert metadata == [{"n": str(n)} for n in (0, 1, 2, 3, 4)]
    assert batch.column("operation").to_pylist() == [0, 0, 1, 2, 3]
    assert batch.column("after").to_pylist()[1] == b'{"a":[null]}', "NaN is null, as in all JSON of ours"
