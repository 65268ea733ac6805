"""Check whether a pipeline's file is still the version that a run works with."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from conduit_tasks.errors import ConfigError
from conduit_tasks.micro_batch.context import Context

CHANGED = 5.0
"""Seconds between two looks at the file."""


@dataclass
class PipelineFile:
    """File of a pipeline on this machine, looked at now and then from the creation of this object on."""

    context: Context
    _looked: float = field(init=False)
    _stat: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self._looked = time.monotonic()

    def changed(self) -> bool:
        """Returns whether the file is another version than the one that this run works with."""
        if not self.context.in_force():
            return True
        now = time.monotonic()
        if now - self._looked < CHANGED:
            return False
        self._looked, before = now, self._stat
        self._stat = self._found()
        if self._stat == before:
            return False
        from conduit_tasks.pipeline.load import get_pipeline

        try:
            return get_pipeline(self.context.pipeline.id).digest() != self.context.pipeline.digest()
        except ConfigError:
            return True  # it is gone, or cannot be read: the next run says so

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.context.pipeline.file)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size
