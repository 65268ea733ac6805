"""Records that a processor makes much larger are held and written by the bytes that they have then."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from conduit_tasks.connectors.rows import Rows
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.record import Origin, Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.topology import Delivery, Processor
from tests.delivery.fakes import FakePort, Tape, Target, work_of
from tests.limits import batch_bytes
from tests.micro_batch.test_row_pass_bytes import rows_of, run, texts

LIMIT = 1 << 20
SIZE = 20_000
COUNT = 1_500
GROW = Processor("grow", "python", {"call": "tests.delivery.test_grown:grow"})
seen: list[int] = []


def grow(record: Record) -> Record | None:
    """Makes a record large; filters one, and fails for another."""
    assert isinstance(record.after, dict)
    n = record.after["n"]
    seen.append(n)
    if n == 700:
        raise ValueError("no")
    record.after["p"] = "x" * SIZE
    return None if n == 800 else record


@pytest.mark.proves("C13", "C9", "I10")
@pytest.mark.parametrize("kind", ["batch-wise", "record-wise"])
def test_what_grows_at_a_destination_is_held_by_its_bytes(kind: str) -> None:
    # Given small records that a destination's processor makes large, 30 MB together
    seen.clear()
    port = FakePort(COUNT, list(range(COUNT)))
    seqs = np.arange(COUNT)
    batch = spool_batch([0] * COUNT, seqs.tolist(), [Record(b"%d" % n, after={"n": n}) for n in range(COUNT)])
    work = replace(
        work_of(port), rows=lambda: iter([(seqs, batch)]), origins=[Origin("p", "s", "0")], chain=Chain((GROW,))
    )
    held: list[int] = []

    class Counting(Tape):
        chunk = 500_000

        def write(self, rows: Rows) -> dict[str, Any] | None:
            held.append(len(seen) - len(self.tape))
            return super().write(rows)

    target = Counting() if kind == "batch-wise" else Target()
    if isinstance(target, Target):
        target.on_send = lambda _: held.append(len(seen) - len(target.taken))
    # When they are delivered with a limit of 1 MiB
    with batch_bytes(LIMIT):
        deliver(work, target, port, Delivery())
    # Then a few MiB of them are made and not yet sent, and all arrive, but for the one that is filtered or failed
    assert max(held) * SIZE < 5 * LIMIT
    arrived = target.tape if isinstance(target, Tape) else target.taken
    assert sorted(seq for seq, _ in arrived) == [n for n in range(COUNT) if n not in (700, 800)]
    assert [letter.seq for letter in port.stored.values()] == [700]
    assert port.complete
    if kind == "batch-wise":
        assert len(held) < 40, "what fits is written together"


@pytest.mark.proves("C13", "C9", "I10")
def test_what_grows_before_the_fan_out_is_held_by_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    process = RowPass._process_block

    def noted(self: RowPass, block: pa.RecordBatch, *more: Any) -> Any:
        made = list(process(self, block, *more))
        sizes.append(sum(each.nbytes for each in made))
        return made

    monkeypatch.setattr(RowPass, "_process_block", noted)
    with batch_bytes(LIMIT):
        result = run(tmp_path, [texts([b'{"n":%d}' % n for n in range(COUNT)])], GROW)
        found = [row["n"] for row in rows_of(tmp_path, result.files)]
    assert max(sizes) < LIMIT
    assert found == [n for n in range(COUNT) if n not in (700, 800)]
    assert (result.read, result.written, result.nacked, result.filtered) == (COUNT, COUNT - 2, 1, 1)
