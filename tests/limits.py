"""A small CONDUIT_BATCH_BYTES for a while, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from conduit_tasks.settings import Settings, settings


@contextmanager
def batch_bytes(limit: int) -> Iterator[None]:
    before = settings()
    Settings(**{**before.model_dump(), "batch_bytes": limit}).use()
    try:
        yield
    finally:
        before.use()
