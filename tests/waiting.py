"""Waiting for something that another thread, process or server does."""

from __future__ import annotations

import linecache
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 300.0
"""Seconds that any one step may take on a busy machine."""
REST, LONGEST = 10.0, 0.5
"""How many times as long as a look took there is none, for so many seconds at most."""


def until(
    condition: Callable[[], T],
    what: str = "",
    *,
    seconds: float = PATIENCE,
    pause: float = 0.01,
    longest: float = 0.1,
) -> T:
    """Waits until `condition` is true and returns it; fails after `seconds`.

    The error names the line that waits, and `what` for. Looks less often the longer it takes, from every `pause`
    seconds to every `longest`, and the longer a look takes, such as a request: to look takes the CPU that what is
    waited for needs.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if found := condition():
            return found
        if (now := time.monotonic()) > deadline:
            raise AssertionError(f"{_line(sys._getframe(1))} (waited {seconds:g} s{what and f' for {what}'})")
        time.sleep(max(pause, min(REST * (now - began), LONGEST)))
        pause = min(pause * 1.1, longest)


def _line(frame: FrameType) -> str:
    """Where this is, and the statement's first line."""
    path, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(path).name}:{number} {linecache.getline(path, number).strip()}"
