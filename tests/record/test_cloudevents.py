"""The CloudEvents view of a record (docs/concepts.md)."""

from __future__ import annotations

import pytest

from conduit_tasks.record.cloudevents import rfc3339, unix_nanoseconds, view
from conduit_tasks.record.record import Origin, Record

ORIGIN = Origin("flights", "departures", "", {"opencdc.readAt": "1700000000000000001", "region": "east"})


def test_attributes_come_from_the_record_and_its_connector() -> None:
    subject = Record(b"1", "update", {"delay": "late"}, key={"id": 5}, after={"x": 1}, origin=ORIGIN)
    assert view(subject) == {
        "id": subject.id,
        "source": "flights/departures",
        "type": "departures.update",
        "subject": '{"id":5}',
        "time": "2023-11-14T22:13:20.000000001Z",
        "specversion": "1.0",
        "datacontenttype": "application/json",
        "delay": "late",
        "region": "east",
        "opencdc.readAt": "1700000000000000001",
        "data": {"x": 1},
    }


def test_metadata_with_the_prefix_wins() -> None:
    meta = {"cloudevents.type": "flight.departed", "cloudevents.id": "7", "cloudevents.carrier": "UA", "carrier": "AA"}
    seen = view(Record(b"1", metadata=meta, origin=ORIGIN))
    assert (seen["type"], seen["id"], seen["carrier"]) == ("flight.departed", "7", "UA")


def test_metadata_named_like_an_attribute_of_the_specification_is_not_that_attribute() -> None:
    assert view(Record(b"1", metadata={"type": "mine"}, origin=ORIGIN))["type"] == "departures.create"


def test_its_own_time_goes_before_the_read_time() -> None:
    subject = Record(b"1", metadata={"opencdc.createdAt": "0"}, origin=ORIGIN)
    assert view(subject)["time"] == "1970-01-01T00:00:00Z"
    assert "time" not in view(Record(b"1", metadata={"opencdc.readAt": "soon"}))


def test_what_a_record_does_not_have_is_not_there() -> None:
    assert view(Record(b"1", origin=ORIGIN), ("subject", "data", "delay", "type")) == {"type": "departures.create"}


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("2013-01-01T05:00:00Z", 1357016400000000000),
        ("2013-01-01T00:00:00-05:00", 1357016400000000000),
        ("2013-01-01 05:00:00", 1357016400000000000),
        ("2013-01-01", 1356998400000000000),
        ("1969-12-31T23:59:59.000000001Z", -999999999),
    ],
)
def test_times_are_exact_to_the_nanosecond(text: str, nanoseconds: int) -> None:
    assert unix_nanoseconds(text) == nanoseconds
    assert unix_nanoseconds(rfc3339(nanoseconds)) == nanoseconds
