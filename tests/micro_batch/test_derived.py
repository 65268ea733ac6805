"""Records that processors derive are held and written by bytes; what would become too much is one dead letter."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conduit_tasks.errors import Unwritable
from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.processors import columns
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.derived import Derived
from conduit_tasks.record import batches
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch
from conduit_tasks.settings import forget
from conduit_tasks.topology import Processor
from tests.faults.parts import dead_letters
from tests.limits import batch_bytes
from tests.micro_batch.harness import payloads, run_until_quiet, write_pipeline
from tests.micro_batch.test_row_pass_bytes import rows_of, run, texts

SPLIT = Processor("each", "split", {"field": ".Payload.After.l"})
AGAIN = Processor("again", "split", {"field": ".Payload.After.l"})
MANY = Processor("each", "python", {"call": "tests.micro_batch.test_derived:apart"})
GROWN = Processor("grown", "field.set", {"field": ".Payload.After.more", "value": "{{ repeat 50 .Payload.After.pad }}"})
LONGER = Processor("grown", "python", {"call": "tests.micro_batch.test_derived:longer"})

PIPELINE = """
version: "2.2"
pipelines:
  - id: p
    dead-letter-queue: {{window-size: 0}}
    connectors:
      - {{id: in, type: source, plugin: file, settings: {{path: "data/*.jsonl", format: jsonl, settle: 0s}},
         processors: [{source}]}}
      - {{id: out, type: destination, plugin: file, settings: {{path: out/all.jsonl, format: payload}},
         processors: [{destination}]}}
    processors: [{pipeline}]
"""
STEPS = {
    "split": "{id: each, plugin: split, settings: {field: .Payload.After.l}}",
    "clone": "{id: each, plugin: clone, settings: {count: '99'}}",
    "python": "{id: each, plugin: python, settings: {call: 'tests.micro_batch.test_derived:apart'}}",
}


def apart(record: Record) -> list[Record]:
    """What `split` does, by a function of the user's."""
    assert isinstance(record.after, dict)
    out = []
    for element in record.after["l"]:
        each = record.copy()
        assert isinstance(each.after, dict)
        each.after["l"] = element
        out.append(each)
    return out


def longer(record: Record) -> Record:
    assert isinstance(record.after, dict)
    record.after["more"] = record.after["pad"] * 50
    return record


def rows(*counts: int, pad: int = 100) -> list[bytes]:
    return [json.dumps({"n": n, "pad": "a" * pad, "l": list(range(many))}).encode() for n, many in enumerate(counts)]


@pytest.mark.proves("C13", "C4", "C14")
@pytest.mark.parametrize("place", ["source", "pipeline", "destination"])
@pytest.mark.parametrize("step", STEPS)
def test_a_record_of_which_too_much_would_be_made_is_one_dead_letter(
    step: str, place: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a record among others that would become 2 MB, where one may become 1 MiB
    monkeypatch.setenv("CONDUIT_BATCH_BYTES", str(256 << 10))
    forget()
    monkeypatch.setattr(batches, "DERIVED_BYTES", 1 << 20)
    write_pipeline(
        home, "p", PIPELINE.format(**{**dict.fromkeys(("source", "pipeline", "destination"), ""), place: STEPS[step]})
    )
    (home / "data").mkdir()
    given = rows(3, 3, 3, 3)
    given[2] = rows(100, pad=20_000)[0].replace(b'"n": 0', b'"n": 2')
    (home / "data/a.jsonl").write_bytes(b"\n".join([*given, b""]))
    # When it is delivered
    run_until_quiet("p")
    # Then that one is a dead letter, whole, with the processor and the limit in its error, and the others are there
    times = 100 if step == "clone" else 3
    assert [row["n"] for row in payloads(home / "out/all.jsonl")] == [n for n in (0, 1, 3) for _ in range(times)]
    (letter,) = dead_letters()
    assert letter["record"]["payload"]["after"] == json.loads(given[2])
    assert (letter["seq"], letter["error_class"]) == (2, "unwritable")
    assert letter["node"].endswith("/each")
    assert "1 MiB together, the most that one record may become" in letter["error"]


@pytest.mark.proves("C13", "I10")
@pytest.mark.parametrize("step", [SPLIT, MANY])
def test_what_is_derived_is_held_by_bytes_and_stays_in_order(
    step: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 40 records that become 8 MB together, 200 KB each
    limit, sizes = 256 << 10, []
    made = columns.part_column

    def noted(part: str, values: Any, bad: Any = None) -> Any:
        column = made(part, values, bad)
        sizes.append(column[0].nbytes)
        return column

    write = RowPass._write
    monkeypatch.setattr(columns, "part_column", noted)
    monkeypatch.setattr(RowPass, "_write", lambda self, batch: (sizes.append(batch.nbytes), write(self, batch))[1])
    # When they pass
    with batch_bytes(limit):
        result = run(tmp_path, [texts(rows(*[20] * 40, pad=10_000))], step)
        found = rows_of(tmp_path, result.files)
    # Then no more than the limit, and what is made of one record, is there at a time
    assert max(sizes) < limit + 300_000
    # And all of it arrives, in order
    assert [(row["n"], row["ord"]) for row in found] == [(n, ord) for n in range(40) for ord in range(20)]
    assert [json.loads(row["after"])["l"] for row in found] == list(range(20)) * 40
    assert (result.read, result.written, result.nacked) == (40, 40, 0)


@pytest.mark.proves("C13")
def test_what_the_chain_does_not_look_at_counts_for_every_derived_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a processor that changes metadata only, and payloads that become too much
    monkeypatch.setattr(batches, "DERIVED_BYTES", 1 << 20)
    clone = Processor("each", "clone", {"count": "9"})
    result = run(tmp_path, [texts([b'{"a":1}', b'{"a":"%s"}' % (b"x" * 200_000), b"{}"])], clone)
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0] * 10 + [2] * 10
    (nacked,) = rows_of(tmp_path, result.nacked_files)
    assert nacked["n"] == 1
    assert b'"node":"sources.in/each"' in nacked["error"]


@pytest.mark.proves("C13", "C4")
@pytest.mark.parametrize("step", [AGAIN, MANY])
def test_what_several_nodes_derive_of_one_record_counts_together(
    step: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given rows that a node before derived, 30 of record 1
    monkeypatch.setattr(batches, "DERIVED_BYTES", 1 << 20)
    after = {"pad": "a" * 10_000, "l": [1, 2, 3, 4, 5]}
    numbers = [0, *[1] * 30, 2]
    given = [
        Record(b"%d" % n, after=json.loads(json.dumps(after)), ordinal=i if n == 1 else 0)
        for i, n in enumerate(numbers, -1)
    ]
    # When each becomes five
    with batch_bytes(128 << 10):
        result = run(tmp_path, [spool_batch([0] * len(numbers), numbers, given)], step)
    # Then record 1 is nacked, with all its rows, and the others go on
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0] * 5 + [2] * 5
    assert [row["n"] for row in rows_of(tmp_path, result.nacked_files)] == [1] * 30
    assert (result.read, result.written, result.nacked) == (3, 2, 1)


@pytest.mark.proves("C13", "I10")
@pytest.mark.parametrize("step", [GROWN, LONGER])
def test_what_grows_beyond_an_array_is_written_in_several(
    step: Processor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given records that grow to 5 KB each, and one to more than an array holds
    monkeypatch.setattr(batches, "ARRAY_BYTES", 40_000)
    given = rows(*[1] * 60)
    given[33] = rows(1, pad=1_000)[0]
    result = run(tmp_path, [texts(given)], step)
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [n for n in range(60) if n != 33]
    (nacked,) = rows_of(tmp_path, result.nacked_files)
    assert (nacked["n"], nacked["after"]) == (33, given[33])
    assert b'"node":"sources.in/grown"' in nacked["error"]


def test_a_chain_of_splits_is_counted_after_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "DERIVED_BYTES", 100_000)
    given = [json.dumps({"l": [{"l": list(range(n))} for _ in range(n)]}).encode() for n in (2, 20, 3)]
    inner = Processor("inner", "split", {"field": ".Payload.After.l.l"})
    result = run(tmp_path, [texts(given)], SPLIT, inner)
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0] * 4 + [2] * 9
    (nacked,) = rows_of(tmp_path, result.nacked_files)
    assert b'"node":"sources.in/inner"' in nacked["error"]


def test_rows_of_an_empty_batch_pass(tmp_path: Path) -> None:
    empty = texts([b"{}"]).slice(0, 0)
    assert isinstance(empty, pa.RecordBatch)
    assert run(tmp_path, [empty], SPLIT).read == 0


def test_records_are_counted_as_they_are_made_and_not_when_all_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given room for a few records
    monkeypatch.setattr(batches, "DERIVED_BYTES", 10_000)
    made: list[int] = []
    endless = (made.append(n) or Record(b"", after=b"x" * 1_000) for n in itertools.count())  # type: ignore[func-returns-value]
    # When records without end are derived, or copies of one that would be too many
    with pytest.raises(Unwritable, match="more than 10000 bytes together"):
        Derived(endless, "each")
    result = Chain([MANY]).run([Record(b"", after={"l": list(range(9)), "pad": "x" * 2_000})])[0]
    # Then it ends soon, and the processor is named
    assert len(made) < 10
    assert (result.processor, result.error_class) == ("each", "unwritable")
