"""The connector keeps its contract, and the processor does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from conduit_tasks.connectors.acceptance import accept
from conduit_tasks.errors import UnknownPlugin
from conduit_tasks.processors.chain import Chain
from conduit_tasks.record.record import Record
from conduit_tasks.topology import Processor


def test_the_journal_keeps_its_contract(tmp_path: Path) -> None:
    accept("journal", {"path": str(tmp_path / "journal.db")}).require()


@pytest.mark.parametrize(("amount", "rounded"), [(1.256, 1.26), (3, 3), (None, None)])
def test_a_number_is_rounded(amount: float | None, rounded: float | None) -> None:
    chain = Chain([Processor("cents", "number.round", {"field": ".Payload.After.amount", "digits": "2"})])
    [result] = chain.run([Record(b"1", after={"amount": amount})])
    assert [record.after for record in result.records] == [{"amount": rounded}]


def test_what_is_no_number_is_an_error_of_its_record() -> None:
    chain = Chain([Processor("cents", "number.round", {"field": ".Payload.After.amount"})])
    [result] = chain.run([Record(b"1", after={"amount": "a lot"})])
    assert "is no number: 'a lot'" in (result.error or "")


def test_the_names_are_those_of_the_entry_points() -> None:
    with pytest.raises(UnknownPlugin, match="did you mean journal"):
        accept("jornal", {})
