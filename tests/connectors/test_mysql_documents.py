"""Documents of MySQL's `json`, from the bytes that its binary log has."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from conduit_tasks.connectors.mysql.documents import document


def packed(hours: int, minutes: int, seconds: int, micro: int = 0, days: int = 0) -> bytes:
    number = (days << 17 | hours << 12 | minutes << 6 | seconds) << 24 | micro
    return struct.pack("<q", number)


def negative(data: bytes) -> bytes:
    return struct.pack("<q", -struct.unpack("<q", data)[0])


DAY = (2026 * 13 + 2) << 5 | 3
VALUES: list[tuple[int, bytes, str]] = [
    (11, packed(1, 2, 3), '"01:02:03.000000"'),
    (11, negative(packed(1, 2, 3, 500_000)), '"-01:02:03.500000"'),
    (11, packed(838, 59, 59), '"838:59:59.000000"'),
    (11, packed(0, 0, 0), '"00:00:00.000000"'),
    (10, packed(0, 0, 0, days=DAY), '"2026-02-03"'),
    (12, packed(4, 5, 6, 7, days=DAY), '"2026-02-03 04:05:06.000007"'),
    (7, packed(4, 5, 6, days=DAY), '"2026-02-03 04:05:06.000000"'),
    (12, packed(0, 0, 0), '"0000-00-00 00:00:00.000000"'),
    (246, b"\x04\x02\x8c\x32", "12.50"),
    (246, b"\x04\x02\x73\xcd", "-12.50"),
    (246, b"\x03\x00\x80\x0c", "12"),
    (253, b"\x00\xff", '"base64:type253:AP8="'),
]
"""Type, bytes, and the text that a query gives of it."""


@pytest.mark.parametrize(("type_", "data", "text"), VALUES)
def test_what_json_has_no_type_for_is_what_a_query_gives(type_: int, data: bytes, text: str) -> None:
    assert document(b"\x0f" + bytes([type_, len(data)]) + data) == json.loads(text)


def test_it_is_the_same_within_objects_and_lists() -> None:
    """Given {"t": TIME}, {"l": [null, "ä"]}, and an empty document."""
    time = bytes([11, 8]) + packed(25, 0, 0)
    object_ = struct.pack("<HHHHBH", 1, 12 + len(time), 11, 1, 0x0F, 12) + b"t" + time
    assert document(b"\x00" + object_) == {"t": "25:00:00.000000"}
    text = "ä".encode()
    list_ = struct.pack("<HHBHBH", 2, 10 + 1 + len(text), 0x04, 0, 0x0C, 10) + bytes([len(text)]) + text
    assert document(b"\x02" + list_) == [None, "ä"]
    empty: Any = document(b"")
    assert empty is None
