"""Runs a function in a forked child, so that a record that kills its process kills only the child (C10)."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ChildDied(Exception):
    """The child ended without an answer; `how` says by which signal or exit code."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


def in_child(function: Callable[..., R], *args: Any) -> R:
    """`function(*args)` in a forked child; its exception is raised here. Raises ChildDied."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        code = 1
        try:
            try:
                answer: tuple[bool, Any] = (True, function(*args))
            except Exception as error:  # noqa: BLE001 - handed to the parent, which raises it
                answer = (False, error)
            with os.fdopen(write_end, "wb") as pipe:
                pickle.dump(answer, pipe, protocol=pickle.HIGHEST_PROTOCOL)
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status != 0 or not data:
        signal = os.WIFSIGNALED(status)
        raise ChildDied(f"signal {os.WTERMSIG(status)}" if signal else f"exit code {os.waitstatus_to_exitcode(status)}")
    ok, value = pickle.loads(data)  # noqa: S301 - written by our own child
    if not ok:
        raise value
    return value


def bisected(function: Callable[[Sequence[T]], list[R]], items: Sequence[T], culprit: Callable[[T, str], R]) -> list[R]:
    """`function(items)`, one answer per item, in children: halved until each item that kills its child stands alone.

    `culprit(item, how)` answers for such an item. At most 2·log2(len) + 1 children per culprit.
    """
    if not items:
        return []
    try:
        return in_child(function, items)
    except ChildDied as died:
        if len(items) == 1:
            return [culprit(items[0], died.how)]
    half = len(items) // 2
    return bisected(function, items[:half], culprit) + bisected(function, items[half:], culprit)
