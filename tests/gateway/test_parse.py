"""From requests to events: the three modes of CloudEvents over HTTP, webhooks, and every way to be no event."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from conduit_tasks.gateway.attributes import BadEvent, is_time
from conduit_tasks.gateway.event import unpack
from conduit_tasks.gateway.parse import Headers, Webhooks, parse
from conduit_tasks.record.cloudevents_http import BATCHED, STRUCTURED

GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(k.replace("_", "-").encode(), v.encode()) for k, v in named.items()]


def structured(**attributes: Any) -> tuple[bool, dict[str, str], bytes | None]:
    [event] = parse(headers(content_type=STRUCTURED), json.dumps({**GOOD, **attributes}).encode())
    return unpack(event)


def binary(body: bytes, sent: Headers) -> tuple[bool, dict[str, str], bytes | None]:
    required = [(f"ce-{k}".encode(), v.encode()) for k, v in GOOD.items()]
    [event] = parse([*required, *sent], body)
    return unpack(event)


def test_what_the_cloudevents_sdk_sends_is_taken_as_it_was_meant() -> None:
    # Given an event of the SDK with all attributes, an extension, and text that must be encoded in headers
    attributes = {
        **{"id": "A 1", "source": "/flights/jfk", "type": "flight.departed", "specversion": "1.0"},
        **{"subject": "Zürich → 100%", "time": datetime(2026, 11, 21, 7, 0, 0, 500_000, UTC)},
        **{"datacontenttype": "application/json", "dataschema": "https://example.org/s", "partitionkey": "AA"},
    }
    event = CloudEvent(attributes, {"n": 1, "text": "ü"})

    def taken(message: HTTPMessage) -> tuple[bool, dict[str, str], Any]:
        [packed] = parse([(k.lower().encode(), v.encode()) for k, v in message.headers.items()], message.body)
        kind, metadata, data = unpack(packed)
        return kind, metadata, json.loads(data or b"null")

    # When it is sent in both modes
    one, other = taken(to_binary(event, JSONFormat())), taken(to_structured(event, JSONFormat()))
    # Then both say the same
    assert one == other
    shaped, metadata, data = one
    assert shaped
    assert data == {"n": 1, "text": "ü"}
    assert metadata["cloudevents.subject"] == "Zürich → 100%"
    assert metadata["cloudevents.partitionkey"] == "AA"
    assert metadata["cloudevents.time"].startswith("2026-11-21T07:00:00.5")
    assert metadata["opencdc.createdAt"] == "1795244400500000000"


def test_structured_data_keeps_its_kind() -> None:
    assert structured(data={"a": 1})[0::2] == (True, b'{"a":1}')
    assert structured(data=[1, "x"])[0::2] == (False, b'[1,"x"]')
    assert structured(data="text")[0::2] == (False, b'"text"')
    assert structured(data="<a/>", datacontenttype="text/xml")[0::2] == (False, b"<a/>")
    assert structured(data_base64=base64.b64encode(b"\n\x00\xff").decode())[0::2] == (False, b"\n\x00\xff")
    assert structured()[0::2] == (False, None)


def test_binary_data_is_kept_byte_by_byte() -> None:
    assert binary(b'{"b": 1,\n "a": 2}', headers(content_type="application/json"))[0::2] == (
        True,
        b'{"b": 1,\n "a": 2}',
    )
    assert binary(b"\xff\n\x00", headers(content_type="image/png"))[0::2] == (False, b"\xff\n\x00")
    assert binary(b"[1]", headers(content_type="application/json"))[0::2] == (False, b"[1]")
    assert binary(b"", [])[0::2] == (False, None)
    latin = headers(content_type="application/json; charset=latin-1")
    assert binary(b'{"a":"\xfc"}', latin)[0::2] == (False, b'{"a":"\xfc"}')


def test_attributes_that_are_no_text_become_their_canonical_text() -> None:
    _, metadata, _ = structured(count=-5, flag=True, none=None)
    assert metadata["cloudevents.count"] == "-5"
    assert metadata["cloudevents.flag"] == "true"
    assert "cloudevents.none" not in metadata


def test_an_event_without_a_time_is_as_old_as_its_arrival() -> None:
    _, metadata, _ = structured()
    assert abs(int(metadata["opencdc.createdAt"]) / 1e9 - datetime.now(UTC).timestamp()) < 60


def test_headers_may_be_quoted_and_are_percent_encoded() -> None:
    _, metadata, _ = binary(b"", headers(ce_a="%E2%82%AC%20%25", ce_b='"with \\"quotes\\""', ce_c="plain"))
    assert (metadata["cloudevents.a"], metadata["cloudevents.b"]) == ("€ %", 'with "quotes"')


def test_a_batch_keeps_its_order_and_may_be_empty() -> None:
    events = [{**GOOD, "id": str(n)} for n in range(5)]
    taken = parse(headers(content_type=BATCHED), json.dumps(events).encode())
    assert [unpack(e)[1]["cloudevents.id"] for e in taken] == list("01234")
    assert parse(headers(content_type=BATCHED), b"[]") == []


def test_a_batch_with_a_bad_event_names_it() -> None:
    events = [GOOD, {**GOOD, "time": "yesterday"}]
    with pytest.raises(BadEvent, match="event 1: attribute 'time'") as caught:
        parse(headers(content_type=BATCHED), json.dumps(events).encode())
    assert (caught.value.attribute, caught.value.event, caught.value.status) == ("time", 1, 400)


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({"id": None}, "id"),
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"source": "not a uri"}, "source"),
        ({"type": ""}, "type"),
        ({"specversion": None}, "specversion"),
        ({"specversion": "0.3"}, "specversion"),
        ({"subject": ""}, "subject"),
        ({"time": "2026-11-21"}, "time"),
        ({"time": "2026-02-30T00:00:00Z"}, "time"),
        ({"dataschema": "relative"}, "dataschema"),
        ({"datacontenttype": "json"}, "datacontenttype"),
        ({"Upper": "x"}, "Upper"),
        ({"with-dash": "x"}, "with-dash"),
        ({"ext": {"a": 1}}, "ext"),
        ({"ext": 1.5}, "ext"),
        ({"ext": 2**31}, "ext"),
        ({"ext": "a\nb"}, "ext"),
        ({"ext": "a\u0085b"}, "ext"),
        ({"ext": "a\x7fb"}, "ext"),
        ({"data": 1, "data_base64": "AA=="}, "data_base64"),
        ({"data_base64": "%%"}, "data_base64"),
        ({"data_base64": 7}, "data_base64"),
    ],
)
def test_a_bad_attribute_is_refused_by_name(attributes: dict[str, Any], named: str) -> None:
    with pytest.raises(BadEvent) as caught:
        structured(**attributes)
    assert caught.value.attribute == named
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("sent", "body", "named"),
    [
        (headers(ce_datacontenttype="text/plain"), b"", "datacontenttype"),
        (headers(ce_data="x"), b"", "data"),
        ([(b"ce-a", b"1"), (b"ce-a", b"2")], b"", "a"),
        ([(b"ce-a", b"%ff")], b"", "a"),
        ([(b"ce-a", b"\xff")], b"", "a"),
        (headers(content_type="application/json"), b'{"a":', "data"),
    ],
)
def test_bad_headers_are_refused_by_name(sent: Headers, body: bytes, named: str) -> None:
    with pytest.raises(BadEvent) as caught:
        binary(body, sent)
    assert caught.value.attribute == named


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (STRUCTURED, b"{", 400),
        (STRUCTURED, b"[]", 400),
        (BATCHED, b"{}", 400),
        (BATCHED, b"[1]", 400),
        ("application/cloudevents+avro", b"", 415),
        ("text/plain", b"hello", 415),
        ("application/json", b"{", 400),
        ("application/json", b"", 400),
    ],
)
def test_what_is_no_event_is_refused(content_type: str, body: bytes, status: int) -> None:
    with pytest.raises(BadEvent) as caught:
        parse(headers(content_type=content_type), body)
    assert caught.value.status == status


def test_a_webhook_keeps_its_body_and_takes_id_and_type_from_headers() -> None:
    hooks = Webhooks(id="x-delivery", type="x-event")
    sent = headers(content_type="application/vnd.x+json", x_delivery="d1", x_event="push")
    [event] = parse(sent, b'{"a": 1}', hooks)
    shaped, metadata, data = unpack(event)
    assert (shaped, data) == (True, b'{"a": 1}')
    assert (metadata["cloudevents.id"], metadata["cloudevents.type"]) == ("d1", "push")
    with pytest.raises(BadEvent, match="x-delivery"):
        parse(headers(content_type="application/json"), b"{}", hooks)


def test_a_header_that_holds_an_attribute_is_there_once() -> None:
    sent = [*headers(content_type="application/json", x_delivery="d1"), (b"x-delivery", b"d2")]
    with pytest.raises(BadEvent, match="x-delivery, which holds the event's id, is given twice"):
        parse(sent, b"{}", Webhooks(id="x-delivery"))


def test_webhooks_can_be_shut_out() -> None:
    with pytest.raises(BadEvent) as caught:
        parse(headers(content_type="application/json"), b"{}", Webhooks(taken=False))
    assert caught.value.status == 415


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("2026-11-21T07:00:00Z", True),
        ("2026-11-21t07:00:00.123456789z", True),
        ("2026-11-21T07:00:00-12:30", True),
        ("2016-12-31T23:59:60Z", True),
        ("2026-11-21 07:00:00Z", False),
        ("2026-11-21T07:00:00", False),
        ("2026-11-21T24:00:00Z", False),
        ("2026-11-21T07:00:00+24:00", False),
    ],
)
def test_times_are_those_of_rfc_3339(text: str, good: bool) -> None:
    assert is_time(text) is good
