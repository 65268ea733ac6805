"""Which records are of which shard of a divided micro-batch, and the numbers that they have in it (ADR 27)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conduit_tasks.broker.ranges import RangeSet
from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.shard import Shard, key_hashes, partitions
from conduit_tasks.errors import Refused
from conduit_tasks.record.record import Data, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.spool.manifest import PartFile, SealedManifest, SliceEntry
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, Tape, work_of

ORDERS = ("key", "partition", "none")


def sealed(sizes: Sequence[tuple[str, int]], files: Sequence[PartFile] = ()) -> SealedManifest:
    """A micro-batch of slices, (partition, records) each."""
    slices = [SliceEntry("in", partition, partition, 0, count, count) for partition, count in sizes]
    bases = [sum(count for _, count in sizes[:at]) for at in range(len(sizes))]
    total = sum(count for _, count in sizes)
    return SealedManifest("p", 1, 7, "c", slices, bases, total, list(files), {"to": total})


def rows_of(
    manifest: SealedManifest, keys: Sequence[Data], block: int = 7
) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
    """Its rows, in order; the key of a record is that of its seq."""
    places = [(number, n) for number, entry in enumerate(manifest.slices) for n in range(entry.records)]
    for at in range(0, manifest.total, block):
        some = places[at : at + block]
        records = [Record(b"%d" % seq, key=keys[seq]) for seq in range(at, at + len(some))]
        batch = spool_batch(np.array([s for s, _ in some]), np.array([n for _, n in some]), records)
        yield manifest.seqs(batch), batch


def seqs_of(shard: Shard, manifest: SealedManifest, keys: Sequence[Data]) -> list[int]:
    return [seq for seqs, _ in shard.rows(rows_of(manifest, keys)) for seq in seqs.tolist()]


def keys_for(manifest: SealedManifest, kinds: int = 30) -> list[Data]:
    random = Random(3)
    return [b"%d" % random.randrange(kinds) for _ in range(manifest.total)]


@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_every_record_is_of_one_shard_and_every_lane_too(by: str, count: int) -> None:
    """Given five partitions and thirty keys, then the shards are disjoint, together everything, and each lane that
    `order-by` keeps in order lies in one of them."""
    manifest = sealed([("a", 40), ("b", 7), ("a", 5), ("c", 30), ("d", 11), ("e", 1)])
    keys = keys_for(manifest)
    shards = [seqs_of(Shard(by, count, n, manifest), manifest, keys) for n in range(count)]
    assert sorted(seq for some in shards for seq in some) == list(range(manifest.total))
    if by == "key":
        lanes = [{keys[seq] for seq in some} for some in shards]
    elif by == "partition":
        lanes = [
            {
                manifest.slices[i].partition
                for i in range(6)
                for s in some
                if 0 <= s - manifest.bases[i] < manifest.slices[i].records
            }
            for some in shards
        ]
    else:
        # Runs of consecutive records, as long as each other.
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        return
    assert sum(map(len, lanes)) == len(set().union(*lanes))


def test_shards_with_the_same_lot_have_the_same_records() -> None:
    manifest = sealed([("a", 60), ("b", 60)])
    made = [Shard("none", 3, 1, manifest, used) for used in (None, [0, 1, 2], [1, 2], [1], [0, 1])]
    assert [shard.name.lot for shard in made] == ["n03.01", "n03.01", "n03.01:1+2", "n03.01:1+1", "n03.01:0+2"]
    assert [str(shard.name) for shard in made] == ["n03.01"] * 5
    of = {shard.name.lot: shard.spans for shard in made}
    assert len(set(of.values())) == len(of)
    assert len({Shard(by, count, 1, manifest).name.lot for by in ("key", "none") for count in (2, 3)}) == 4


def test_the_largest_partitions_are_of_different_shards() -> None:
    manifest = sealed([("a", 10), ("b", 50), ("c", 50), ("d", 30)])
    keys = keys_for(manifest)
    assert [len(seqs_of(Shard("partition", 2, n, manifest), manifest, keys)) for n in range(2)] == [80, 60]
    assert partitions(manifest) == 4


def test_a_key_has_one_shard_however_its_json_is_spelt() -> None:
    """Given a structured key, then it has the hash of its compact JSON; raw bytes have their own; no key is as an empty
    one."""
    manifest = sealed([("a", 5)])
    spelt = json.dumps({"k": [1, "ü"]}).encode()
    keys: list[Data] = [{"k": [1, "ü"]}, spelt, None, b"", {"k": [1, "ü"]}]
    [(_, batch)] = rows_of(manifest, keys)
    hashes = key_hashes(batch).tolist()
    assert hashes[0] == hashes[4] != hashes[1]
    assert hashes[2] == hashes[3]
    at = batch.schema.get_field_index("key")
    other = [b'{"k": [1,   "\xc3\xbc"]}', *batch.column("key").to_pylist()[1:]]
    respelt = batch.set_column(at, batch.schema.field(at), pa.array(other, batch.schema.field(at).type))
    assert key_hashes(respelt).tolist() == hashes


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_an_engine_confirms_is_translated_to_numbers_and_back(data: st.DataObject) -> None:
    """Given any set of confirmed numbers of a shard, then the ranges of seqs hold exactly the shard's records that have
    them, and are translated to the same numbers again."""
    manifest = sealed([("a", 60), ("b", 25)])
    keys = keys_for(manifest, 9)
    by = data.draw(st.sampled_from(ORDERS))
    shard = Shard(by, 3, data.draw(st.integers(0, 2)), manifest)
    own = seqs_of(shard, manifest, keys)
    assert shard.records == len(own)
    # Rows may be read again, also while they are read: that counts nothing twice.
    assert seqs_of(shard, manifest, keys) == own
    assert shard.records == len(own)
    numbers = RangeSet.of((n, n) for n in data.draw(st.sets(st.integers(0, max(0, len(own) - 1)))) if n < len(own))
    ranges = shard.seqs(numbers)
    assert [seq for seq in own if seq in ranges] == [own[n] for first, last in numbers for n in range(first, last + 1)]
    if own:
        assert shard.numbers(ranges.ranges) == numbers
    if by != "key":
        assert shard.spans is not None
        assert {seq for first, last in shard.spans for seq in range(first, last + 1)} == set(own)


@pytest.mark.parametrize("by", ["partition", "none"])
def test_only_files_that_hold_records_of_the_shard_are_read(by: str) -> None:
    files = [
        PartFile("0", 40, 1, 1, (0, 0), (0, 39)),
        PartFile("1", 30, 1, 1, (1, 0), (1, 29)),
        PartFile("2", 30, 1, 1, (2, 0), (2, 29)),
        PartFile("3", 0, 1, 1),
    ]
    manifest = sealed([("a", 40), ("b", 30), ("c", 30)], files)
    found = [[file.path for file in Shard(by, 2, n, manifest).files(files)] for n in range(2)]
    assert found == ([["0"], ["1", "2"]] if by == "partition" else [["0", "1"], ["1", "2"]])
    assert len(Shard("key", 2, 0, manifest).files(files)) == 4


@settings(max_examples=80, deadline=None)
@given(
    total=st.integers(1, 300),
    confirmed=st.sets(st.integers(0, 299), max_size=40),
    bad=st.sets(st.integers(0, 299), max_size=4),
    span=st.tuples(st.integers(0, 299), st.integers(0, 299)) | st.none(),
)
def test_a_destination_hears_with_each_write_which_shard_it_is_and_what_of_that_is_confirmed(
    total: int, confirmed: set[int], bad: set[int], span: tuple[int, int] | None
) -> None:
    """Given seqs that were confirmed before, anywhere, and records that are refused, in a piece of the micro-batch or
    in all of it, then what it hears is what is open."""
    shard = Shard("none", 2, 1, sealed([("", total)]))
    port = FakePort(total, list(range(total)))
    port.confirmed = RangeSet.of((s, s) for s in confirmed if s < total)

    class Hears(Tape):
        def open(self, state: dict[str, Any] | None) -> None:
            assert state is None

        def write(self, rows: Rows) -> None:
            assert str(self.shard) == "n02.01"
            left = RangeSet(((0, total - 1),)).subtract(port.confirmed)
            assert [s for s in range(total) if not rows.confirmed(s)] == [s for a, b in left for s in range(a, b + 1)]
            assert rows.seqs is not None
            assert rows.seqs.tolist() == [int(record.position) for record in rows.records()]
            if bad & set(rows.seqs.tolist()):
                raise Refused("constraint failed")

    some = tuple(sorted(min(seq, total - 1) for seq in span)) if span is not None else None
    deliver(work_of(port, shard=shard, span=some), Hears(), port, Delivery())
    first, last = some or (0, total - 1)
    assert port.confirmed.subtract(RangeSet(((first, last),))) == RangeSet.of(
        (s, s) for s in confirmed if s < total and not first <= s <= last
    )
    assert not RangeSet(((first, last),)).subtract(port.confirmed)
