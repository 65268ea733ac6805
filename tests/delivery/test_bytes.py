"""Chunks and what is read ahead are bounded by bytes, and no row gets lost on the way to a destination."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from conduit_tasks.connectors.base import DELIVERED, Outcome
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.dead_letters.store import DeadLetterStore
from conduit_tasks.delivery import chunks as chunking
from conduit_tasks.delivery import reading
from conduit_tasks.delivery.chunks import Piece, chunks
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.lanes import Lanes
from conduit_tasks.delivery.progress import Progress
from conduit_tasks.delivery.work import Work
from conduit_tasks.errors import InvariantBroken
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.batches import FIXED_BYTES, row_bytes
from conduit_tasks.record.dead_letter import DeadLetter
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.topology import Delivery, Processor
from tests.delivery.fakes import FakePort, Tape, Target, work_of
from tests.limits import batch_bytes

LIMIT = 64 << 10


def pieces(sizes: list[tuple[int, int]], rows_per_batch: int) -> list[Piece]:
    """Rows of (records of a seq, bytes of each), as a reading gives them."""
    flat = [(seq, ord, size) for seq, (count, size) in enumerate(sizes) for ord in range(count)]
    out = []
    for at in range(0, len(flat), rows_per_batch):
        part = flat[at : at + rows_per_batch]
        records = [Record(b"%d" % s, after=b"x" * size, ordinal=ord) for s, ord, size in part]
        seqs = np.array([s for s, _, _ in part], np.int64)
        out.append((seqs, seqs, spool_batch([0] * len(part), seqs.tolist(), records)))
    return out


def sized(port: FakePort, sizes: dict[int, int], rows_per_batch: int = 7) -> Work:
    """The work of a port, with payloads of these sizes."""
    plain = work_of(port)

    def rows() -> Iterator[tuple[Any, pa.RecordBatch]]:
        for seqs, _, batch in pieces([(1, sizes.get(seq, 1)) for seq in range(port.total)], rows_per_batch):
            yield seqs, batch

    return replace(plain, rows=rows, origins=[Origin("p", "src", "0")])


def text_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch without what each row takes beside its texts, which is counted in more than one way."""
    return int(row_bytes(batch).sum()) - FIXED_BYTES * batch.num_rows


class Measured(Tape):
    """Keeps the bytes of each write."""

    chunk = 500_000

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, int]] = []

    def write(self, rows: Rows) -> dict[str, Any] | None:
        self.sizes.append((rows.batch.num_rows, text_bytes(rows.batch)))
        return super().write(rows)


@pytest.mark.proves("C13", "I10")
@settings(max_examples=60, deadline=None)
@example(sizes=[(1, 1), (1, 1), (1, 700), (1, 60_000), (3, 700), (3, 700)], rows_per_batch=1, most=10)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([1, 20, 700, 9_000, 60_000, 300_000])), min_size=1, max_size=60
    ),
    rows_per_batch=st.integers(1, 80),
    most=st.integers(1, 50),
)
def test_chunks_hold_every_row_once_and_no_more_bytes_than_the_limit(
    sizes: list[tuple[int, int]], rows_per_batch: int, most: int
) -> None:
    given_rows = pieces(sizes, rows_per_batch)
    made = list(chunks(iter(given_rows), most, LIMIT))
    before = pa.Table.from_batches([batch for _, _, batch in given_rows])
    assert pa.Table.from_batches([chunk.batch for chunk in made]).equals(before)
    assert np.array_equal(np.concatenate([c.seqs for c in made]), np.concatenate([seqs for seqs, _, _ in given_rows]))
    for one, other in itertools.pairwise(made):
        assert one.seqs[-1] != other.seqs[0], "derived rows of one seq are never parted"
    for chunk in made:
        alone = chunk.records == 1
        assert alone or (chunk.rows <= most and text_bytes(chunk.batch) <= LIMIT)


@pytest.mark.proves("C13", "C10")
def test_a_batch_wise_destination_gets_everything_in_writes_of_a_bounded_size() -> None:
    # Given records from one byte to hundreds of KB
    port = FakePort(300, list(range(300)))
    sizes = {seq: (1, 100, 5_000, 400_000)[seq % 4] for seq in range(300)}
    target = Measured()
    # When they are delivered with a small limit
    with batch_bytes(LIMIT):
        deliver(sized(port, sizes), target, port, Delivery())
    # Then the destination has all of them, and no write of several records was larger than that
    assert [seq for seq, _ in target.tape] == list(range(300))
    assert port.complete
    assert all(rows == 1 or size <= LIMIT for rows, size in target.sizes)


@pytest.mark.proves("I10")
@pytest.mark.parametrize("kind", ["batch-wise", "record-wise"])
@pytest.mark.parametrize("lost", ["rows of a joined batch", "a held piece", "the last piece"])
def test_a_row_that_gets_lost_on_the_way_is_not_confirmed(lost: str, kind: str, monkeypatch: Any) -> None:
    # Given an engine that loses rows where it makes chunks
    whole = chunking._joined

    def first_part(pieces: list[Piece]) -> Any:
        return chunking.Chunk(
            np.concatenate([seqs for seqs, _, _ in pieces]), np.concatenate([o for _, o, _ in pieces]), pieces[0][2]
        )

    def without_the_last(pieces: list[Piece]) -> Any:
        return whole(pieces[:-1] or pieces)

    def last_part(pieces: list[Piece]) -> Any:
        joined = whole(pieces)
        return joined.part(0, max(1, joined.rows - 1))

    how = {"rows of a joined batch": first_part, "a held piece": without_the_last, "the last piece": last_part}[lost]
    monkeypatch.setattr(chunking, "_joined", how)
    port = FakePort(300, list(range(300)))
    target = Measured() if kind == "batch-wise" else Target()
    # When it delivers
    with pytest.raises(InvariantBroken, match="invariant 10"):
        deliver(sized(port, {}), target, port, Delivery())
    # Then it stops, and nothing is confirmed that was not handed over
    handed = {seq for seq, _ in (target.tape if isinstance(target, Tape) else target.taken)}
    assert {seq for first, last in port.confirmed.ranges for seq in range(first, last + 1)} <= handed


@pytest.mark.proves("I10")
def test_rows_that_are_handed_over_are_those_that_came() -> None:
    for wrong in ([1, 2], [0, 2], [0, 1, 2, 3, 4]):
        handed = chunking.Handed()
        came = pieces([(1, 1)] * 4, 2)
        assert len(list(handed.coming(came))) == 2
        with pytest.raises(InvariantBroken, match="invariant 10"):
            handed.took(np.array(wrong))


@pytest.mark.proves("C13", "I10")
def test_more_than_two_gigabytes_come_in_chunks_that_hold_them() -> None:
    # Given 40 rows of 60 MiB each, of which all share the memory of one
    payload = pa.py_buffer(bytes(60 << 20))
    offsets = pa.py_buffer(np.array([0, 60 << 20], np.int32))
    one = spool_batch([0], [0], [Record(b"0", after=b"x")])
    at = one.schema.get_field_index("after")
    large = one.set_column(at, one.schema.field(at), pa.Array.from_buffers(pa.binary(), 1, [None, offsets, payload]))
    given_rows = ((np.array([seq]), np.array([seq]), large) for seq in range(40))
    # When they are cut by the default limit
    made = [(chunk.rows, chunk.batch.num_rows, chunk.batch.nbytes) for chunk in chunks(given_rows, 500_000, 64 << 20)]
    # Then each is in a chunk
    assert [rows for rows, _, _ in made] == [held for _, held, _ in made] == [1] * 40
    assert sum(size for _, _, size in made) > 2 << 30


@pytest.mark.proves("C13")
@pytest.mark.parametrize("order_by", ["none", "partition", "key"])
def test_a_record_wise_delivery_holds_a_bounded_number_of_bytes(order_by: str) -> None:
    # Given large records among small ones, some refused, and a target that is slow
    port = FakePort(200, list(range(200)))
    sizes = {seq: 300_000 if seq % 3 == 0 else 10 for seq in range(200)}
    read = 0
    work = sized(port, sizes, rows_per_batch=1)

    def rows() -> Iterator[tuple[Any, pa.RecordBatch]]:
        nonlocal read
        for seqs, batch in work.rows():
            read += int(row_bytes(batch).sum())
            yield seqs, batch

    most = 0

    def watch(seq: int) -> None:
        nonlocal most
        settled = {s for s, _ in target.taken} | {key[2] for key in port.stored}
        most = max(most, read - sum(sizes[s] for s in settled))

    target = Target(lambda seq, _: Outcome("refused", "no", 400) if seq % 7 == 0 else DELIVERED)
    target.on_send = watch
    target.pause = lambda _: 0.002
    # When they are delivered
    options = Delivery(order_by=order_by, pipe="resend-multi", max_unconfirmed=4)
    with batch_bytes(1 << 20):
        deliver(replace(work, rows=rows), target, port, options)
    # Then what is in memory is about the limit, a block that is read on top of it, and nothing is lost
    assert port.complete
    assert len(target.taken) + len(port.stored) == 200
    assert most <= (1 << 20) + 3 * 300_000 + 200 * 200


@pytest.mark.proves("C13")
@pytest.mark.parametrize("order_by", ["none", "partition"])
def test_a_nack_larger_than_all_that_may_be_held_stops_nobody(order_by: str) -> None:
    port = FakePort(20, list(range(20)))
    target = Target(lambda seq, _: Outcome("refused", "no", 400) if seq % 2 else DELIVERED)
    with batch_bytes(1000):
        deliver(sized(port, dict.fromkeys(range(20), 5000)), target, port, Delivery(order_by=order_by))
    assert port.complete
    assert len(port.stored) == 10


@pytest.mark.proves("C13", "C14")
def test_dead_letters_are_stored_in_files_of_a_bounded_size_and_each_once(tmp_path: Path) -> None:
    letters = [
        DeadLetter(1, n, Record(b"%d" % n, after=b"x" * size), "n", "e", "c", 1, 0, 0.0, None)
        for n, size in enumerate([10, 300_000, 300_000, 10, 10, 2_000_000, 10])
    ]
    store = DeadLetterStore(str(tmp_path), "p", "d")
    with batch_bytes(500_000):
        store.store(letters)
        store.store(letters)
    assert len(list(tmp_path.rglob("*.parquet"))) == 4
    assert [row["seq"] for row in DeadLetterStore(str(tmp_path), "p").list()] == list(range(7))


@pytest.mark.proves("C4", "C14")
@pytest.mark.parametrize("kind", ["batch-wise", "record-wise"])
def test_what_a_destinations_processor_made_and_nothing_can_write_is_a_dead_letter_as_it_came_in(kind: str) -> None:
    # Given processors that make what cannot be written of some records (of others what is just exact)
    port = FakePort(14, list(range(14)))
    chain = Chain((Processor("mine", "python", {"call": "tests.micro_batch.test_row_pass_bytes:made_of"}),))
    target = Tape() if kind == "batch-wise" else Target()

    def rows() -> Iterator[tuple[Any, pa.RecordBatch]]:
        seqs = np.arange(14)
        yield seqs, spool_batch([0] * 14, list(range(14)), [Record(b"%d" % n, after={"n": n}) for n in range(14)])

    work = replace(work_of(port), rows=rows, origins=[Origin("p", "src", "0")], chain=chain)
    # When they are delivered
    deliver(work, target, port, Delivery())
    # Then each of those is a dead letter, which can be written, and the others arrive
    assert sorted(key[2] for key in port.stored) == [*range(1, 11), 12]
    assert {letter.error_class for letter in port.stored.values()} == {"unwritable"}
    assert {letter.node for letter in port.stored.values()} == {"destinations.d/mine"}
    assert [letter.record.after for letter in port.stored.values()] == [{"n": n} for n in (*range(1, 11), 12)]
    assert len(target.tape if isinstance(target, Tape) else target.taken) == 3


def apart(record: Record) -> list[Record]:
    """As many records as the record says."""
    assert isinstance(record.after, dict)
    return [replace(record, after={"i": i, "p": "x" * 1_000}) for i in range(record.after["n"])]


@pytest.mark.proves("C13", "I10", "C9")
@pytest.mark.parametrize("kind", ["batch-wise", "record-wise"])
@pytest.mark.parametrize("plugin", ["split", "python"])
def test_what_a_destinations_processors_derive_is_written_by_bytes(plugin: str, kind: str) -> None:
    # Given 30 records that become 40 each, 40 KB together, and one that becomes more than ordinals tell apart
    port = FakePort(31, list(range(31)))
    given_settings = {"field": ".Payload.After.l"} if plugin == "split" else {"call": "tests.delivery.test_bytes:apart"}
    chain = Chain((Processor("each", plugin, given_settings),))
    target = Measured() if kind == "batch-wise" else Target()
    many = [40_000 if n == 17 else 40 for n in range(31)]
    records = [Record(b"%d" % n, after={"n": m, "l": [0] * m, "p": "x" * 1_000 * (m < 99)}) for n, m in enumerate(many)]
    work = replace(
        work_of(port),
        rows=lambda: iter([(np.arange(31), spool_batch([0] * 31, list(range(31)), records))]),
        origins=[Origin("p", "src", "0")],
        chain=chain,
    )
    # When they are delivered
    with batch_bytes(100_000):
        deliver(work, target, port, Delivery())
    # Then each write has a few times the limit at most, and all arrive in order, but that one, whole, is a dead letter
    if isinstance(target, Measured):
        assert max(size for _, size in target.sizes) < 400_000
        assert len(target.sizes) > 5
        assert [seq for seq, _ in target.tape] == [n for n in range(31) for _ in range(40) if n != 17]
    else:
        assert len(target.taken) == 30 * 40
    (letter,) = port.stored.values()
    assert (letter.seq, letter.error_class, letter.node) == (17, "unwritable", "destinations.d/each")
    assert "may derive 32,768 at most" in letter.error
    assert isinstance(letter.record.after, dict)
    assert len(letter.record.after["l"]) == 40_000
    assert port.complete


@pytest.mark.proves("I10")
def test_entries_that_get_lost_between_rows_and_sends_stop_the_delivery(monkeypatch: Any) -> None:
    # Given an engine that loses the last record of each block
    whole = reading.process

    def losing(*given: Any) -> Iterator[Any]:
        for entries in whole(*given):
            del entries[-1]
            yield entries

    monkeypatch.setattr(reading, "process", losing)
    port = FakePort(100, list(range(100)))
    with pytest.raises(InvariantBroken, match=r"100 rows of micro-batch 7 came to destinations\.d, .* 99 processed"):
        deliver(work_of(port), Target(), port, Delivery())
    assert not port.confirmed.ranges


@pytest.mark.proves("I10")
def test_an_entry_that_gets_lost_before_it_is_expected_stops_the_delivery(monkeypatch: Any) -> None:
    # Given an engine that passes one record over, as if it had not been read
    expect = Progress.expect
    monkeypatch.setattr(Progress, "expect", lambda self, seq, *of: expect(self, seq, *of) if seq != 70 else None)
    monkeypatch.setattr(Lanes, "admit", lambda self, entry, admit=Lanes.admit: entry.seq == 70 or admit(self, entry))
    port = FakePort(100, list(range(100)))
    with pytest.raises(InvariantBroken, match=r"100 records of micro-batch 7 came to destinations\.d, .* 99 expected"):
        deliver(work_of(port), Target(), port, Delivery())
    assert not port.confirmed.ranges
