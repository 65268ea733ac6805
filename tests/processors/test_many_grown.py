"""What a processor makes larger before one that takes several records at a time is held by its bytes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from conduit_tasks.processors.many import Made, ManyProcessor, by_level
from conduit_tasks.processors.registry import build
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Processor

SIZE, COUNT, LIMIT = 20_000, 1_000, 1 << 20


def grow(record: Record) -> Record:
    assert isinstance(record.after, dict)
    return Record(record.position, after=record.after | {"p": "x" * SIZE})


class Together(ManyProcessor):
    """Notes how many records it is given at a time."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def process_many(self, records: Sequence[Record]) -> list[Made]:
        self.given.append(len(records))
        return list(records)


@pytest.mark.proves("C13")
def test_records_that_a_function_makes_larger_come_to_the_next_processor_some_at_a_time() -> None:
    # Given small records, 20 MB once a function has made them large
    records = [Record(b"%d" % n, after={"n": n}) for n in range(COUNT)]
    call = build(Processor("grow", "python", {"call": "tests.processors.test_many_grown:grow"}))
    together = Together()
    # When they go on to a processor of several records, with a limit of 1 MiB
    found = []
    for results in by_level([(None, call, "grow"), (None, together, "all")], records, LIMIT):
        assert sum(len(r.records) for r in results) * SIZE < 2 * LIMIT
        found += [r.records[0].after["n"] for r in results]  # type: ignore[index]  # structured
    # Then it gets about that much at a time, and all of them in order
    assert max(together.given) * SIZE < 2 * LIMIT
    assert len(together.given) < COUNT * SIZE / LIMIT * 2
    assert found == list(range(COUNT))
