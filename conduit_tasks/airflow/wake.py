"""The trigger that wakes a pipeline between two times of its schedule; runs in Airflow's triggerer (docs/schedules.md).

An event only starts a run, which asks the broker what there is to do: one that Airflow loses or merges loses no data.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

if TYPE_CHECKING:
    from conduit_tasks.micro_batch.wake import Watch

T = TypeVar("T")

log = logging.getLogger(__name__)

THREADS = 32
"""A server that does not answer keeps one for as long as its time-out is; the triggerer's loop is never kept."""
TROUBLE = 60.0
"""Seconds until a look that failed is tried again, at most."""


class WakeTrigger(BaseEventTrigger):
    """One per pipeline: names it, and the version of its file, so that a changed file is looked at anew. What to look
    at and how to get there it reads from the file, where it runs: nothing secret is kept in Airflow's database."""

    def __init__(self, pipeline_id: str, version: str) -> None:
        super().__init__()
        self.pipeline_id, self.version = pipeline_id, version
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class and arguments."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"pipeline_id": self.pipeline_id, "version": self.version}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """An event whenever the pipeline has something to do, at the pace its file allows. Never ends by itself, nor by
        an error: Airflow would start it again every second."""
        from conduit_tasks.micro_batch.wake import Pace, Watch

        pace: Pace | None = None
        told, wait = "", 1.0
        while True:
            try:
                if self._watch is None:
                    self._watch = await _work(lambda: Watch.open(self.pipeline_id))
                look = await _work(self._watch.look)
            except Exception as error:  # noqa: BLE001 - see above
                if (said := f"{type(error).__name__}: {error}") != told:
                    log.warning("pipeline %s is not looked at, only its schedule goes on: %s", self.pipeline_id, said)
                told, wait = said, min(2 * wait, TROUBLE)
                await self.cleanup()
                await asyncio.sleep(wait)
                continue
            told, wait = "", 1.0
            if pace is None:
                pace = Pace(self._watch.wake.pause)
            if reason := pace.wake(look, time.monotonic()):
                yield TriggerEvent({"pipeline": self.pipeline_id, "reason": reason})
            await asyncio.sleep(self._watch.wake.look)

    async def cleanup(self) -> None:
        """Closes what is open; a look under way ends first."""
        watch, self._watch = self._watch, None
        if watch is not None:
            _threads().submit(watch.close)


async def _work(do: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_threads(), do)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="conduit-wake")
