"""What one step asks of sources again and again: which connectors stay open, and that none is left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import ClassVar

import pytest

from conduit_tasks.connectors import sources
from conduit_tasks.connectors.sources import OpenSources
from conduit_tasks.topology import Pipeline


class Connector:
    stays_open: ClassVar[bool] = True
    there: ClassVar[list[Connector]] = []

    def __init__(self) -> None:
        self.closed = 0
        self.there.append(self)

    def close(self) -> None:
        self.closed += 1


class Brief(Connector):
    stays_open = False


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, pipeline: Pipeline) -> Callable[[type[Connector]], OpenSources]:
    def make(cls: type[Connector]) -> OpenSources:
        monkeypatch.setattr(sources, "source_connector", lambda *_: cls())
        return OpenSources(pipeline)

    monkeypatch.setattr(Connector, "there", [])
    return make


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline("p", (), (), ())


def test_one_that_stays_open_is_asked_again_and_closed_at_the_end(made: Callable[..., OpenSources]) -> None:
    with closing(made(Connector)) as opened:
        with opened.asked("in") as first:
            pass
        with opened.asked("in") as again:
            assert again is first
        assert Connector.there[0].closed == 0
    assert [c.closed for c in Connector.there] == [1]


def test_any_other_is_built_for_each_question(made: Callable[..., OpenSources]) -> None:
    opened = made(Brief)
    for _ in range(2):
        with opened.asked("in"):
            pass
    assert [c.closed for c in Connector.there] == [1, 1]


def test_one_whose_question_failed_is_asked_no_more(made: Callable[..., OpenSources]) -> None:
    opened = made(Connector)
    with pytest.raises(OSError, match="gone"), opened.asked("in"):
        raise OSError("gone")
    with opened.asked("in"):
        pass
    assert [c.closed for c in Connector.there] == [1, 0]


def test_two_questions_at_once_have_a_connector_each(made: Callable[..., OpenSources]) -> None:
    with closing(made(Connector)) as opened, opened.asked("in") as one, opened.asked("in") as other:
        assert one is not other
    assert [c.closed for c in Connector.there] == [1, 1]


def test_one_that_nobody_asked_for_a_while_is_built_again(
    made: Callable[..., OpenSources], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "IDLE", -1.0)
    with closing(made(Connector)) as opened:
        for _ in range(2):
            with opened.asked("in"):
                pass
        assert [c.closed for c in Connector.there] == [1, 0]


def test_one_that_cannot_be_closed_leaves_no_other_open(made: Callable[..., OpenSources]) -> None:
    opened = made(Connector)
    with opened.asked("a") as first, opened.asked("b"):
        first.close = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ZeroDivisionError):
        opened.close()
    assert [c.closed for c in Connector.there] == [0, 1]
