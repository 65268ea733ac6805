"""CloudEvents and webhooks as requests bring them: taken whole, or refused with a reason."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.gateway.attributes import BadEvent
from conduit_tasks.gateway.event import join, split, unpack
from conduit_tasks.gateway.parse import Webhooks, parse
from conduit_tasks.gateway.pipe import place
from conduit_tasks.record import jsons
from tests.fuzz.hostile import BYTES, DEPTHS, NUMBERS, TEXT, damaged, ending, fuzzed, json_like

STRUCTURED = "application/cloudevents+json"
TYPES = [
    *(
        STRUCTURED,
        "application/cloudevents-batch+json",
        "application/cloudevents+avro",
        "application/json",
        "text/plain",
    ),
    *("application/json; charset=utf-16", "application/json;charset", "a/b+json", "", ";", 'text/plain; charset="'),
]
NAMES = st.sampled_from(
    [
        "id",
        "source",
        "type",
        "specversion",
        "time",
        "subject",
        "dataschema",
        "datacontenttype",
        "data",
        "data_base64",
        "x",
    ]
)
VALUES = json_like() | st.sampled_from(
    ["1.0", "/s", "2024-01-01T00:00:00Z", "2024-02-30T00:00:60Z", "a/b;c", "%zz", "%41", "AA==", ""]
)
PLAIN = Webhooks()
SOUND = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"a": [1, 2.5, None, "é"]}}


def taken(headers: list[tuple[bytes, bytes]], body: bytes, webhooks: Webhooks = PLAIN) -> list[bytes]:
    with ending():
        try:
            events = parse(headers, body, webhooks)
        except BadEvent as bad:
            refused = bad
        else:
            refused = None
        if refused is not None:
            assert refused.status in (400, 415)
            assert orjson.dumps([refused.detail, refused.attribute])
            return []
        assert split(join(events)) == events
        for event in events:
            # What is taken can be read back, and written as JSON everywhere.
            structured, metadata, data = unpack(event)
            orjson.dumps(metadata)
            if structured:
                jsons.dumps(jsons.loads(data or b""))
            try:
                place(event, "partitionkey")
            except BadEvent:
                continue
        return events


def typed(kind: str, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind.encode("latin-1", "replace")), *more]


@fuzzed
@given(event=st.dictionaries(NAMES | TEXT, VALUES, max_size=8), kind=st.sampled_from(TYPES[:2]))
def test_structured_and_batched(event: dict[str, Any], kind: str) -> None:
    one = {**SOUND, **event}
    for items in (event, one, [one, event], [[one]]):
        try:
            body = orjson.dumps(items)
        except TypeError:
            continue
        taken(typed(kind), body)


@fuzzed
@given(body=damaged(st.sampled_from([orjson.dumps(SOUND), orjson.dumps([SOUND, SOUND])])), kind=st.sampled_from(TYPES))
@example(body=b'{"specversion":"1.0","id":"\\ud800","source":"/s","type":"t","data":{}}', kind=STRUCTURED)
@example(body=b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data_base64":"\\u0661"}', kind=STRUCTURED)
def test_a_damaged_body(body: bytes, kind: str) -> None:
    taken(typed(kind), body)
    taken(typed(kind, (b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"ce-source", b"/s"), (b"ce-type", b"t")), body)


@fuzzed
@given(
    headers=st.lists(
        st.tuples(
            NAMES.map(lambda n: f"ce-{n}".encode()) | BYTES.map(lambda b: b"ce-" + b.lower()),
            BYTES | TEXT.map(lambda t: t.encode(errors="replace")),
        ),
        max_size=8,
    ),
    body=BYTES,
    kind=st.sampled_from(TYPES) | TEXT,
)
def test_binary_with_any_headers(headers: list[tuple[bytes, bytes]], body: bytes, kind: str) -> None:
    taken(typed(kind, *headers), body)
    taken([*headers, (b"ce-specversion", b"1.0")], body)
    taken(typed("application/json", (b"x-id", headers[0][1] if headers else b"")), body, Webhooks(True, "x-id", "x-id"))


@fuzzed
@given(depth=DEPTHS, kind=st.sampled_from(TYPES), opened=st.sampled_from([b"[", b'{"a":', b'{"data":', b'[{"data":']))
def test_of_any_depth(depth: int, kind: str, opened: bytes) -> None:
    closed = b"}" if opened.startswith(b"{") else b"]" if opened == b"[" else b"}]"
    deep = opened * depth + b"1" + closed * depth
    taken(typed(kind), deep)
    taken(typed(STRUCTURED), orjson.dumps({**SOUND, "data": None})[:-5] + deep + b"}")


@fuzzed
@given(number=NUMBERS | st.integers(10**300, 10**320))
def test_any_number(number: float) -> None:
    written = str(number).encode()
    events = taken(
        typed(STRUCTURED), b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"n":%b}}' % written
    )
    if events and isinstance(number, int):
        assert jsons.loads(unpack(events[0])[2] or b"")["n"] == number
