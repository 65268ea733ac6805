"""Messages of a replication slot, whatever is in them: what they say, or an error of ours that names postgres."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conduit_tasks.connectors.postgres.pgoutput import Change, Decoder, Message, Relation, Truncate, truncated
from conduit_tasks.errors import SourceError
from tests.fuzz.hostile import BYTES, damaged, ending, fuzzed

Value = str | int | None
"""A text, None for NULL, 1 for one that is not told."""
MOST = 64
"""Bytes of memory, for each byte of a message, that it may take to decode it; the rest is the interpreter's own."""


def relation(columns: Sequence[str] = ("id", "text"), identity: bytes = b"d", oid: int = 7) -> bytes:
    out = b"R" + struct.pack(">I", oid) + b"public\0orders\0" + identity + struct.pack(">H", len(columns))
    for n, name in enumerate(columns):
        out += bytes([n == 0]) + name.encode() + b"\0" + struct.pack(">Ii", 25, -1)
    return out


def row(values: Sequence[Value]) -> bytes:
    out = struct.pack(">H", len(values))
    for value in values:
        if isinstance(value, str):
            out += b"t" + struct.pack(">I", len(value.encode())) + value.encode()
        else:
            out += b"n" if value is None else b"u"
    return out


BEGIN = b"B" + struct.pack(">QqI", 1 << 40, 700_000_000_000_000, 5)
COMMIT = b"C\0" + struct.pack(">QQq", 1 << 40, (1 << 40) + 90, 700_000_000_000_000)
INSERT = b"I" + struct.pack(">I", 7) + b"N" + row(["1", "é"])
UPDATE = b"U" + struct.pack(">I", 7) + b"O" + row(["1", "x"]) + b"N" + row(["2", 1])
UPDATE_KEY = b"U" + struct.pack(">I", 7) + b"K" + row(["1", None]) + b"N" + row(["2", None])
DELETE = b"D" + struct.pack(">I", 7) + b"K" + row(["1", None])
TRUNCATE = b"T" + struct.pack(">IBII", 2, 0, 7, 8)
TOLD = (relation(), relation(("id",), b"n", 8))
SOUND = (*TOLD, BEGIN, INSERT, UPDATE, UPDATE_KEY, DELETE, TRUNCATE, COMMIT, b"Yxx", b"Oxx", b"Mxx")
NUMBERS = st.sampled_from([0, 1, 2, 3, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])


@st.composite
def lying(draw: st.DrawFn) -> bytes:
    """A sound message in which one number of two or four bytes is another."""
    data = bytearray(draw(st.sampled_from(SOUND)))
    kind = draw(st.sampled_from([">H", ">I"]))
    at = draw(st.integers(1, max(1, len(data) - struct.calcsize(kind))))
    number = draw(NUMBERS) & ((1 << 8 * struct.calcsize(kind)) - 1)
    data[at : at + struct.calcsize(kind)] = struct.pack(kind, number)
    return bytes(data)


def decoded(messages: Sequence[bytes]) -> list[Message | None]:
    """What they say, up to the first that is refused."""
    decoder, out, said = Decoder(), list[Message | None](), "postgres"
    try:
        for data in (*TOLD, *messages):
            out.append(decoder.decode(data))
    except SourceError as error:
        said = str(error)
    assert "postgres" in said
    return out


def texts(message: Message | None) -> list[str]:
    """All that a message says in words."""
    match message:
        case Change():
            rows = (message.old or {}, message.new or {})
            return [text for values in rows for text in values.values() if text is not None]
        case Relation():
            return [message.schema.removeprefix("pg_catalog"), message.name, *(c.name for c in message.columns)]
        case Truncate():
            return [r.name for r in message.relations]
    return []


@fuzzed
@given(messages=st.lists(st.sampled_from(SOUND) | damaged(st.sampled_from(SOUND)) | lying() | BYTES, max_size=5))
@example(messages=[b""])
@example(messages=[b"R"])
@example(messages=[relation(identity=b"?")])
@example(messages=[relation().replace(b"orders", b"\xff\xfe")])
@example(messages=[b"T" + struct.pack(">IB", 0xFFFFFFFF, 0)])
@example(messages=[INSERT[:-1]])
@example(messages=[INSERT.replace(struct.pack(">I", 7), struct.pack(">I", 9))])
@example(messages=[INSERT.replace(b"t\0\0\0\1", b"t\xff\xff\xff\xff")])
def test_a_message_of_a_slot_says_what_it_says_or_is_refused(messages: list[bytes]) -> None:
    with ending():
        tracemalloc.start()
        try:
            said = decoded(messages)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < (1 << 20) + MOST * sum(map(len, messages))
    for data, message in zip((*TOLD, *messages), said, strict=False):
        # Nothing is said that does not stand there, and of a row either all or nothing
        assert all(text.encode() in data for text in texts(message) if not isinstance(message, Truncate))
        if isinstance(message, Change) and message.new is not None:
            names = {column.name for column in message.relation.columns}
            assert message.new.keys() | set(message.unchanged) == names


@pytest.mark.parametrize("data", SOUND, ids=lambda data: chr(data[0]))
def test_a_message_that_is_cut_or_longer_than_it_says_is_refused(data: bytes) -> None:
    # Given each sound message, which is understood
    assert len(decoded([data])) == len(TOLD) + 1
    if data[0] in b"YOM":
        return  # nothing of them is read
    # When it is cut anywhere, or something follows, then nothing is made of it
    for other in (*(data[:n] for n in range(len(data))), data + b"\0"):
        assert len(decoded([other])) == len(TOLD), other


@pytest.mark.parametrize(
    "data",
    [
        INSERT.replace(b"N\0\2", b"X\0\2"),  # no new row
        b"D" + struct.pack(">I", 7) + b"N" + row(["1", None]),  # a delete of a new row
        b"D" + struct.pack(">I", 7),
        b"I" + struct.pack(">I", 7) + b"K" + row(["1", None]) + b"N" + row(["1", None]),
        b"I" + struct.pack(">I", 7) + b"N" + row(["1"]),  # fewer columns than the table
        b"I" + struct.pack(">I", 7) + b"N" + row(["1", "2", "3"]),  # more
        INSERT.replace(b"t\0\0\0\1", b"b\0\0\0\1"),  # binary, which was not asked for
        relation(("id", "id")),
    ],
)
def test_a_message_that_fits_no_table_is_refused(data: bytes) -> None:
    assert len(decoded([data])) == len(TOLD)


@fuzzed
@given(head=BYTES | lying(), size=st.integers(0, 1 << 32))
@example(head=b"T\xff\xff\xff\xff", size=17)
@example(head=b"T", size=1)
def test_a_truncate_names_no_more_tables_than_it_has_room_for(head: bytes, size: int) -> None:
    with suppress(SourceError):
        count = truncated(head, size)
        assert 6 + 4 * count == size
