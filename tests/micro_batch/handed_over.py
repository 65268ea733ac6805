"""Functions that a process of its own runs: here, as a new one imports where they are from."""

from __future__ import annotations

import os
import signal
from typing import Any


def double(n: int) -> int:
    return 2 * n


def raising(error: BaseException) -> None:
    raise error


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Particular(Exception):
    """Does not come back from a pickle: it is not made from its arguments."""

    def __init__(self, what: str, *, why: str) -> None:
        super().__init__(f"{what}: {why}")


def particular() -> None:
    raise Particular("it", why="broken")


def a_library_s() -> None:
    raise type("Panic", (Exception,), {"__module__": "_somewhere"})("the table is not there")


def lambda_() -> Any:
    return lambda: 1
