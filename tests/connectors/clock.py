"""A clock for `connectors.file.settle` that only the test and its own waiting move."""

from __future__ import annotations

import time as real
from collections.abc import Callable


class Clock:
    """In place of the module `time`. `at`: seconds since the machine started → what happens then, once."""

    def __init__(self, at: dict[float, Callable[[], object]] | None = None) -> None:
        self.now, self.slept = 1_000.0, 0.0
        self._began = real.time() - self.now
        self._at = {self.now + after: call for after, call in (at or {}).items()}

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._began + self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.go(seconds)

    def go(self, seconds: float) -> None:
        self.now += seconds
        for due in sorted(due for due in self._at if due <= self.now):
            self._at.pop(due)()
