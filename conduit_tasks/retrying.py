"""tenacity's loop of attempts, whose failures hold nothing once they are handled.

An error holds its traceback, that the frames, and those of tenacity hold the error: what the last attempt worked with,
its rows and its client, would live until garbage is collected, which is seldom during a delivery (`record.collector`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import tenacity

_LIVES_ON = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Retrying(tenacity.Retrying):
    """Calls a function until it succeeds or may not be tried again."""

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns what `fn` does. Raises its last error, whose frames are empty."""
        try:
            return super().__call__(fn, *args, **kwargs)
        except BaseException as error:
            let_go(error)
            raise


def let_go(error: BaseException) -> None:
    """Empties the frames of an error, and of those that it came from, that have ended: nothing that they worked with is
    held any more. The traceback keeps its lines."""
    for each in _chain(error):
        found: TracebackType | None = each.__traceback__
        while found is not None:
            frame, found = found.tb_frame, found.tb_next
            # One of a generator or a coroutine may only wait, and would be ended.
            if not frame.f_code.co_flags & _LIVES_ON:
                try:
                    frame.clear()
                except RuntimeError:
                    continue  # It still runs.


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        todo += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions
