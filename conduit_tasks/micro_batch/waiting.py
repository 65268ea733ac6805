"""Waiting of a node by the broker's bell: how long it lingers in a run that lasts, and when it gives way to the next
run or a stop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.errors import PipelineStopped
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.course import Ended, handed_over, past

if TYPE_CHECKING:
    from conduit_tasks.broker.runs import UnderWay

LOOK = 1.0
"""Seconds between two looks of a node that waits, if the bell does not ring."""


@dataclass
class Waiting:
    """One node of a run that waits for the others. `limit`: seconds in which the run opens micro-batches, counted
    from its beginning, or from the last time that nothing was found to have come (`plan_run`)."""

    context: Context
    run: str
    limit: float
    _bell: str = "0-0"

    def lingers(self, node: str, seconds: float = LOOK) -> bool | Ended:
        """Returns whether the run lasts, for a node that can do nothing now: it is stopped, down, or failed a moment
        ago. Waits so many seconds for that to change. Ended if the next run has taken over. Raises PipelineStopped."""
        until = time.monotonic() + seconds
        while True:
            self._bell = self.context.broker.runs.bell()
            if self._stopped():
                return False
            course = self._course()
            if course is not None and (over := handed_over(course, node)):
                return over
            if course is None or not self._lasts(course):
                return False
            if (left := until - time.monotonic()) <= 0:
                return True
            self._wait(left)

    def lasts(self) -> bool:
        """Returns whether the run waits for more if nothing is left: its nodes are ready for that from the beginning.
        Raises PipelineStopped."""
        course = self._course()
        return course is not None and self._lasts(course) and not self._stopped()

    def leaves(self, node: str) -> Ended | None:
        """Returns why a destination leaves what it has not begun to another run; None if it does not."""
        course = self._course()
        if course is None:
            return None
        if self._past(course):
            return Ended("the rest is left to the next run", again=True)
        return handed_over(course, node)

    def handed_over(self, node: str) -> Ended | None:
        """Returns Ended if the next run has taken over from this node."""
        course = self._course()
        return handed_over(course, node) if course is not None else None

    def ready(self, node: str) -> None:
        """Says that this node can do its work from now on."""
        self.context.broker.runs.tell_ready(self.run, node)

    def taken_over_from(self, node: str) -> bool:
        """Returns whether the same node of the run before is still at work; waits a moment for that to change."""
        self._bell = self.context.broker.runs.bell()
        course = self._course()
        if course is None or course.before is None or not course.before.at_work(node):
            return False
        self._wait()
        return True

    def _past(self, course: UnderWay) -> bool:
        return past(course, self.limit)

    def _lasts(self, course: UnderWay) -> bool:
        return course.lasts and not self._past(course)

    def _course(self) -> UnderWay | None:
        return self.context.broker.runs.under_way(self.run)

    def _stopped(self) -> bool:
        """Returns whether a graceful stop has come to its end: everything is delivered and acked, and nodes that still
        wait end in good order. Raises PipelineStopped if the pipeline was stopped by force or is degraded."""
        broker = self.context.broker
        if (status := broker.lifecycle.stored_status()) not in ("stopped", "degraded"):
            return False
        if status == "degraded" or broker.access.field(broker.keys.pipeline, "forced") is not None:
            raise PipelineStopped(f"pipeline {self.context.pipeline.id} is {status}")
        return True

    def _wait(self, seconds: float = LOOK) -> None:
        self.context.broker.runs.await_bell(self._bell, min(seconds, LOOK))
