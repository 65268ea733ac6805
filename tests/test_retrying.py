"""A call that failed, and was tried again in vain, holds nothing of what it worked with."""

from __future__ import annotations

import asyncio
import traceback
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import pytest

from conduit_tasks.connectors.base import Outcome, RecordDestination, Spec
from conduit_tasks.delivery.engine import deliver
from conduit_tasks.delivery.retry import RetryPolicy
from conduit_tasks.errors import Refused, Unavailable
from conduit_tasks.record.record import Record
from conduit_tasks.retrying import let_go
from conduit_tasks.topology import Delivery
from tests.delivery.fakes import FakePort, work_of

pytestmark = pytest.mark.usefixtures("no_garbage_collected")


class Rows:
    """What an attempt works with."""


@pytest.mark.parametrize("retry", [0, 2])
@pytest.mark.parametrize("kind", [Refused, Unavailable])
@pytest.mark.parametrize("caused", [False, True])
def test_what_failed_is_let_go(retry: int, kind: type[Exception], caused: bool) -> None:
    held: list[weakref.ref[Rows]] = []

    def attempt() -> None:
        rows = Rows()
        held.append(weakref.ref(rows))
        if not caused:
            raise kind("no")
        try:
            broken(rows)
        except OSError as error:
            raise kind("no") from error

    def broken(_: Rows) -> None:
        raise OSError("broken")

    call = RetryPolicy(Delivery(retry=retry, backoff_delay=0.0)).calling(lambda _: None, lambda _: None)
    kept = None
    try:
        call(attempt)
    except kind as error:
        kept = error
    # Also by who keeps the error, whose traceback still says where it was
    assert len(held) == (1 + retry if kind is Unavailable else 1)
    assert [ref() for ref in held] == [None] * len(held)
    assert kept is not None
    assert "in attempt" in "".join(traceback.format_exception(kept))


def test_what_still_runs_or_waits_goes_on() -> None:
    errors: list[Exception] = []

    def numbers() -> Generator[int, None, None]:
        for n in range(3):
            try:
                raise Unavailable("no")
            except Unavailable as error:
                errors.append(error)
            yield n

    async def waits() -> int:
        left = 1
        try:
            raise Unavailable("no")
        except Unavailable as error:
            errors.append(error)
        await asyncio.sleep(0)
        return left

    def here(others: Callable[[], Coroutine[Any, Any, int]]) -> tuple[list[int], int]:
        some, other = numbers(), others()
        first = next(some)
        with suppress(StopIteration):
            other.send(None)
        try:
            raise ExceptionGroup("all", errors)
        except ExceptionGroup as error:
            let_go(error)
        with pytest.raises(StopIteration) as ended:
            other.send(None)
        return [first, *some], ended.value.value

    assert here(waits) == ([0, 1, 2], 1)


def test_openings_that_failed_are_let_go() -> None:
    held: list[weakref.ref[Rows]] = []

    class Away(RecordDestination):
        spec = Spec("away", "")

        async def open(self, timeout: float) -> None:  # noqa: ASYNC109 - the contract of RecordDestination
            rows = Rows()
            held.append(weakref.ref(rows))
            raise Unavailable(f"no {type(rows).__name__} within {timeout}")

        async def send(self, record: Record) -> Outcome:
            return Outcome("failed", record.id)

        async def close(self) -> None:
            return

    port = FakePort(total=3, matched=range(3))
    options = Delivery(retry=2, backoff_delay=0.0, on_unavailable="dead-letter")
    deliver(work_of(port), Away({}), port, options)
    assert len(held) == 3
    assert [ref() for ref in held] == [None] * 3
