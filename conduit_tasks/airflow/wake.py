"""The trigger that wakes a pipeline between two times of its schedule; runs in Airflow's triggerer (docs/schedules.md).

An event only starts a run, which asks the broker for its work: if Airflow loses or merges an event, no data is lost.
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
"""Threads for looks. A server that does not answer blocks one until its timeout, and never the triggerer's loop."""
TROUBLE = 60.0
"""Seconds at most until a failed look is tried again."""


class WakeTrigger(BaseEventTrigger):
    """Trigger of one pipeline. It holds the pipeline's id and the version of its file, so that a changed file gets a
    new trigger. The triggerer reads sources and connections from the file: nothing secret is kept in Airflow's
    database."""

    def __init__(self, pipeline_id: str, version: str) -> None:
        super().__init__()
        self.pipeline_id, self.version = pipeline_id, version
        self._watch: Watch | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Returns the class and its arguments."""
        name = f"{type(self).__module__}.{type(self).__qualname__}"
        return name, {"pipeline_id": self.pipeline_id, "version": self.version}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yields an event whenever the pipeline has something to do, at the pace that its file allows. Never ends, not
        even by an error: Airflow would start it again every second."""
        from conduit_tasks.micro_batch.wake import WakePace, Watch

        pace: WakePace | None = None
        told, wait = "", 1.0
        while True:
            try:
                if self._watch is None:
                    self._watch = await at_work(lambda: Watch.open(self.pipeline_id))
                look = await at_work(self._watch.look)
            except Exception as error:  # noqa: BLE001 - see above
                if (said := f"{type(error).__name__}: {error}") != told:
                    log.warning("pipeline %s is not looked at, only its schedule goes on: %s", self.pipeline_id, said)
                told, wait = said, min(2 * wait, TROUBLE)
                await self.cleanup()
                await asyncio.sleep(wait)
                continue
            told, wait = "", 1.0
            if pace is None:
                pace = WakePace(self._watch.wake.pause)
            if reason := pace.wake(look, time.monotonic()):
                yield TriggerEvent({"pipeline": self.pipeline_id, "reason": reason})
            await asyncio.sleep(self._watch.wake.look)

    async def cleanup(self) -> None:
        """Closes the connections; a look under way ends first."""
        watch, self._watch = self._watch, None
        if watch is not None:
            _threads().submit(watch.close)


async def at_work(do: Callable[[], T]) -> T:
    """Does something that may block, in a thread of its own."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), do)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="conduit-wake")
