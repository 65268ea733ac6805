"""Indexes of values, hashes, and values found in JSON text without a parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit_tasks.spool import index as spool_index


@pytest.mark.parametrize(("segment", "block"), [(1 << 20, 1_024), (64, 4), (1, 1), (100, 7)])
def test_an_index_of_several_segments_finds_every_row_the_last_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment: int, block: int
) -> None:
    from conduit_tasks.record.sought import hash_of, hashed
    from conduit_tasks.spool.store import LocalStore

    monkeypatch.setattr(spool_index, "SEGMENT", segment)
    monkeypatch.setattr(spool_index, "BLOCK", block)
    monkeypatch.setattr(spool_index, "TAIL", 64)
    words = [None if n % 5 == 0 else f"w{n % 13}".encode() * (n % 4) for n in range(500)]
    store = LocalStore(tmp_path)
    writer = spool_index.IndexWriter(store.create("a.index"), ["x", "none"])
    for at in range(0, 500, 90):
        some = words[at : at + 90]
        writer.add(len(some), [hashed(pa.array(some, pa.binary())), hashed(pa.nulls(len(some), pa.binary()))])
    writer.close()
    with spool_index.Index(store, "a.index", 500) as index:
        for word in {word for word in words if word is not None}:
            assert list(index.rows("x", hash_of(word))) == [n for n in range(499, -1, -1) if words[n] == word]
        assert list(index.rows("x", hash_of(b"other"))) == list(index.rows("none", hash_of(b""))) == []


def test_a_hash_depends_on_every_byte_of_a_value_and_on_nothing_else() -> None:
    from conduit_tasks.record.sought import MOST, hash_of, hashed

    # Whatever stands before and behind it in its column, and however long the others are
    texts = [b"", b"\0", b"a", b"a\0", b"abcdefgh", b"abcdefghi", b"x" * 300, b"y" * 7, b"0123456789abcdef"]
    whole = pa.array([*texts, None, *texts], pa.binary())
    for column in (whole, whole.slice(3, 12), whole.cast(pa.large_binary()), pa.array(texts, pa.binary())):
        hashes, rows = hashed(column)
        there = [(n, hash_of(text)) for n, text in enumerate(column.to_pylist()) if text is not None]
        assert list(zip(range(len(column)) if rows is None else rows.tolist(), hashes.tolist())) == there
    assert len({hash_of(text) for text in texts}) == len(texts)
    base = bytes(range(40))
    flipped = {hash_of(base[:n] + bytes([base[n] ^ 1]) + base[n + 1 :]) for n in range(40)}
    assert len(flipped | {hash_of(base)}) == 41
    assert hash_of(b"z" * MOST + b"a") == hash_of(b"z" * MOST + b"b"), "these are told apart by the record"
    assert hash_of(b"z" * MOST) != hash_of(b"z" * (MOST + 1))
    # And it never changes: files hold it
    assert hash_of(b"order-4711") == EXPECTED


EXPECTED = 3910492124109012867


def test_values_are_found_in_json_as_a_parser_finds_them() -> None:
    """Nothing that a parser finds may be missing from the index; what is there besides is compared with the record."""
    import random

    from conduit_tasks.record import json_values
    from conduit_tasks.record.record import Origin, Record
    from conduit_tasks.record.schema import spool_batch
    from conduit_tasks.record.sought import Columns, hash_of

    # Given objects with blanks, escapes, nested and repeated names, texts that hold the name, and values of every kind
    rng = random.Random(7)
    scalars: list[Any] = [
        0,
        -12,
        10**25,
        1.5,
        2e40,
        True,
        False,
        None,
        "",
        "x" * 300,
        'a"b',
        "é",
        "\\",
        "name",
        '"name":',
        "12",
    ]

    def some(depth: int) -> Any:
        kind = rng.random()
        if depth and kind < 0.25:
            return {rng.choice(["name", "n", "na me", "deep"]): some(depth - 1) for _ in range(rng.randrange(4))}
        if depth and kind < 0.4:
            return [some(depth - 1) for _ in range(rng.randrange(3))]
        return rng.choice(scalars)

    texts: list[bytes | None] = [None, b"{}", b'{"name":1', b"name"]
    for _ in range(600):
        value = {rng.choice(["name", "deep", "other"]): some(2) for _ in range(rng.randrange(4))}
        written = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1, 20]))
        texts.append(written.encode())
    texts.append(('{"name" :' + " " * 40 + "7}").encode())
    rows = np.arange(len(texts))
    records = [Record(b"", after=text) for text in texts]
    batch = spool_batch(np.zeros(len(texts), np.int32), rows, records)
    # All but the first four are structured
    shape = pa.array(np.where(rows < 4, 0, 4).astype(np.int8))
    batch = batch.set_column(batch.schema.get_field_index("shape"), batch.schema.field("shape"), shape)
    fields = [
        ".Payload.After.name",
        ".Payload.After.deep.name",
        '.Payload.After.deep["na me"]',
        '.Payload.After["no\\"ne"]',
    ]
    for cut in (batch, batch.slice(5), batch.slice(0, 4), batch.slice(9, 1)):
        offset = int(cut.column("n")[0].as_py())
        for field, (hashes, of) in zip(fields, Columns(fields, [Origin("p", "in", "")]).of(cut)):
            numbers = list(range(cut.num_rows)) if of is None else of.tolist()
            assert numbers == sorted(numbers)
            entries = set(zip(numbers, hashes.tolist()))
            for n in range(cut.num_rows):
                text = texts[n + offset]
                expected = _parsed(field, text) if n + offset >= 4 and text is not None else None
                assert expected is None or (n, hash_of(expected)) in entries, (field, text)
                if n + offset < 4:
                    assert n not in numbers, "raw data has no fields"
    # And where a name stands very often, the texts are parsed
    often = b'{"x":[' + b",".join([b'{"name":1}'] * 50) + b"]}"
    assert json_values.values_of("name", np.frombuffer(often, np.uint8), np.array([0, len(often)])) is None


def _parsed(field: str, text: bytes) -> bytes | None:
    from conduit_tasks.record.fields import parse
    from conduit_tasks.record.sought import text_of

    value = json.loads(text)
    for name in parse(field).path:
        value = value.get(name) if isinstance(value, dict) else None
    return text_of(value)
