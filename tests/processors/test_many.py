"""A processor of several records at a time has to answer for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from conduit_tasks.errors import ConduitError
from conduit_tasks.processors.base import RecordProcessor
from conduit_tasks.processors.many import Made, ManyProcessor, by_level
from conduit_tasks.record.record import Record
from tests.processors.conftest import record


class Answering(ManyProcessor):
    """Answers as many outcomes, call by call, as it is told; the last number counts for all further calls."""

    def __init__(self, *counts: int) -> None:
        self.counts, self.calls = counts, 0

    def process_many(self, records: Sequence[Record]) -> list[Made]:
        self.calls += 1
        assert self.calls < 10, "it is asked again without end"
        count = self.counts[min(self.calls, len(self.counts)) - 1]
        return [*records, *records][:count]


class Twice(RecordProcessor):
    """Derives two records from one."""

    def __init__(self) -> None:
        """Has no settings."""

    def process(self, record: Record) -> list[Record]:
        return [record, replace(record, after={"again": True})]


def taken(processor: ManyProcessor, count: int) -> list[int]:
    """Numbers of records that come out of each turn."""
    step = (None, processor, "ask")
    return [len(results) for results in by_level([step], [record({"n": n}) for n in range(count)])]


@pytest.mark.parametrize(("counts", "said"), [((0,), 0), ((2, 0), 0), ((4,), 4), ((5,), 5)])
def test_too_few_or_too_many_answers_are_an_error_that_names_the_processor(counts: tuple[int, ...], said: int) -> None:
    # Given a processor that answers nothing for its records, at once or later, or more than it was asked
    processor = Answering(*counts)
    # When it is asked for three records
    with pytest.raises(ConduitError) as failed:
        taken(processor, 3)
    # Then the error says who it is, what it answered, and what it has to answer
    assert "'ask' (Answering)" in str(failed.value)
    assert f"{said} outcomes for {1 if len(counts) > 1 else 3} record(s)" in str(failed.value)
    assert "at least one, and one for each record at most" in str(failed.value)


@pytest.mark.parametrize(("counts", "said"), [((1, 0), 0), ((1, 2), 2)])
def test_the_same_holds_for_the_rest_of_the_records_of_one_position(counts: tuple[int, ...], said: int) -> None:
    # Given two records of one position, which stay together, and a processor that answers for the first alone
    steps = [(None, Twice(), "twice"), (None, Answering(*counts), "ask")]
    # When it is asked for the second
    with pytest.raises(ConduitError, match=f"'ask'.*{said} outcomes for 1 record"):
        list(by_level(steps, [record({"n": 1})]))


def test_answers_for_the_first_records_are_enough() -> None:
    assert taken(Answering(2, 1), 3) == [2, 1]


@pytest.mark.parametrize("count", [0, 2])
def test_one_record_alone_has_one_answer(count: int) -> None:
    with pytest.raises(ConduitError, match=f"{count} outcomes for 1 record"):
        Answering(count).process(record({"n": 1}))
