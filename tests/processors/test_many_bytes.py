"""Processors of several records at a time are handed what was derived, and answer, by bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conduit_tasks.micro_batch.row_pass import RowPass
from conduit_tasks.processors.chain import Chain
from conduit_tasks.processors.dedupe import Dedupe, in_memory
from conduit_tasks.processors.derived import in_parts, record_bytes
from conduit_tasks.record import batches
from conduit_tasks.record.record import Record
from conduit_tasks.record.schema import spool_batch
from tests.limits import batch_bytes
from tests.micro_batch.test_row_pass_bytes import rows_of, run, texts
from tests.processors.answering import Server, answering
from tests.processors.conftest import step

LIMIT = 256 << 10
SPLIT = step("split", field=".Payload.After.l")
DEDUPE = step("dedupe", key=".Payload.After.l")


def payloads(count: int, elements: int, pad: int) -> list[bytes]:
    each = [list(range(n * elements, (n + 1) * elements)) for n in range(count)]
    return [json.dumps({"pad": "a" * pad, "l": own}).encode() for own in each]


@pytest.fixture
def server() -> Iterator[Server]:
    """Answers 50 KB that end with the question."""
    with answering(lambda asked: (200, b"x" * 50_000 + asked.body)) as made:
        yield made


@pytest.mark.proves("C13", "C9", "I10")
@pytest.mark.parametrize("steps", [(SPLIT, DEDUPE), (DEDUPE, SPLIT), (DEDUPE, SPLIT, DEDUPE)])
def test_what_is_derived_before_or_behind_is_handed_over_by_bytes(
    steps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given 40 records that become 8 MB together, 200 KB each
    sizes: list[int] = []
    process, write = Dedupe.process_many, RowPass._write

    def noted(self: Dedupe, given: Any) -> Any:
        sizes.append(sum(map(record_bytes, given)))
        return process(self, given)

    monkeypatch.setattr(Dedupe, "process_many", noted)
    monkeypatch.setattr(RowPass, "_write", lambda self, batch: (sizes.append(batch.nbytes), write(self, batch))[1])
    # When they pass a processor that takes whole blocks
    with batch_bytes(LIMIT), in_memory():
        result = run(tmp_path, [texts(payloads(40, 20, 10_000))], *steps)
        found = rows_of(tmp_path, result.files)
    # Then no more than the limit, and what is made of one record, is there at a time; and all of it, in order
    assert max(sizes) < LIMIT + 300_000
    assert [(row["n"], row["ord"]) for row in found] == [(n, ord) for n in range(40) for ord in range(20)]
    assert [json.loads(row["after"])["l"] for row in found] == list(range(800))
    assert (result.read, result.written, result.nacked) == (40, 40, 0)


@pytest.mark.proves("C13", "C9")
@pytest.mark.parametrize("derived", [1, 4])
def test_long_answers_are_awaited_some_at_a_time(derived: int, server: Server) -> None:
    # Given a service that answers 50 KB to each of 40 small records, or to four that each becomes
    webhook = {"request.url": server.url, "request.method": "POST", "request.body": "{{ .Payload.After.l }},"}
    hook = step("webhook.http", **{"allow-link-local": "true", "response.body": ".Key"}, **webhook)
    chain = Chain((SPLIT, hook, step("field.set", field=".Payload.After.more", value="x")))
    given = [Record(b"%d" % n, after=json.loads(text)) for n, text in enumerate(payloads(40, derived, 10))]
    # When they are processed with a limit of 256 KB
    asked, counts, answers = 0, [], []
    with batch_bytes(LIMIT):
        for results in in_parts(chain, given, np.arange(40), LIMIT):
            counts.append(len(server.asked) - asked)
            asked = len(server.asked)
            answers += [record for result in results for record in result.records]
            # Then what is handed on is held no longer
            assert len(given) == 40 - len(answers) // derived
    chain.close()
    # And few are asked for before the first ones are handed on, each once, in order
    assert max(counts) <= LIMIT // 50_000 + derived + 1
    assert [str(record.key)[-5:].strip("x,'") for record in answers] == [str(n) for n in range(40 * derived)]
    assert len(server.asked) == 40 * derived
    assert all(isinstance(record.after, dict) and record.after["more"] == "x" for record in answers)


@pytest.mark.proves("C13", "C4")
def test_what_several_rows_of_a_record_become_counts_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given rows that a node before derived, 30 of record 1, which become 1.5 MB where 1 MiB is the most
    monkeypatch.setattr(batches, "DERIVED_BYTES", 1 << 20)
    numbers = [0, *[1] * 30, 2]
    given = [
        Record(b"%d" % n, after={"pad": "a" * 10_000, "l": list(range(i * 5, i * 5 + 5))}, ordinal=i if n == 1 else 0)
        for i, n in enumerate(numbers)
    ]
    with batch_bytes(128 << 10), in_memory():
        result = run(tmp_path, [spool_batch([0] * len(numbers), numbers, given)], SPLIT, DEDUPE)
    # Then record 1 is nacked, with all its rows, and the others go on
    assert [row["n"] for row in rows_of(tmp_path, result.files)] == [0] * 5 + [2] * 5
    assert [row["n"] for row in rows_of(tmp_path, result.nacked_files)] == [1] * 30
    assert (result.read, result.written, result.nacked) == (3, 2, 1)
