"""When records happened, of whole batches."""

from __future__ import annotations

import pyarrow as pa

from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.record.times import UNKNOWN, event_times, origin_times

CREATED, READ = "opencdc.createdAt", "opencdc.readAt"


def origin(**metadata: str) -> Origin:
    return Origin("p", "c", "", {f"opencdc.{name}": value for name, value in metadata.items()})


def batch(slices: list[int], metadata: list[dict[str, str]]) -> pa.RecordBatch:
    records = [Record(b"%d" % i, metadata=m) for i, m in enumerate(metadata)]
    return spool_batch(slices, list(range(len(slices))), records)


def test_what_a_slice_shares_is_its_creation_then_its_reading_and_nonsense_is_nothing() -> None:
    origins = [origin(createdAt="2000", readAt="9000"), origin(readAt="9000"), origin(readAt="soon"), origin()]
    assert origin_times(origins).tolist() == [2, 9, UNKNOWN, UNKNOWN]


def test_records_without_metadata_have_the_time_of_their_slice() -> None:
    shared = origin_times([origin(readAt="1000"), origin(readAt="2000")])
    assert event_times(batch([0, 0, 1], [{}, {}, {}]), shared).tolist() == [1, 1, 2]


def test_a_records_own_time_counts_wherever_it_stands_in_its_metadata() -> None:
    # Given rows with none, one and several entries, and a batch that is a part of another
    shared = origin_times([origin(readAt="1000")])
    rows = batch(
        [0] * 6, [{CREATED: "7000"}, {}, {"a": "b", CREATED: "8000", "c": "d"}, {"a": CREATED}, {}, {CREATED: "9999"}]
    )
    # Then
    assert event_times(rows, shared).tolist() == [7, 1, 8, 1, 1, 9]
    assert event_times(rows.slice(2, 3), shared).tolist() == [8, 1, 1]
    assert event_times(rows.slice(1, 1), shared).tolist() == [1]


def test_a_time_that_is_no_number_is_as_none() -> None:
    shared = origin_times([origin(readAt="1000")])
    rows = batch([0, 0, 0], [{CREATED: "yesterday"}, {CREATED: "5000"}, {CREATED: ""}])
    assert event_times(rows, shared).tolist() == [1, 5, 1]
