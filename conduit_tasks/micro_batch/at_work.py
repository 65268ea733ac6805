"""Messages between the nodes of a run: that a node is at work, and that it has ended and how (docs/architecture.md,
"One run")."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from conduit_tasks.broker.runs import Heard
from conduit_tasks.errors import BrokerUnavailable
from conduit_tasks.micro_batch.context import Context, opened
from conduit_tasks.micro_batch.every import every
from conduit_tasks.micro_batch.plan import records_read

if TYPE_CHECKING:
    from conduit_tasks.broker.runs import UnderWay

log = logging.getLogger(__name__)

AT_WORK = 15.0
"""Seconds for which a task is taken to be at work after it said so; it says so three times as often."""
ACKS = "acks"
"""Node name of the first source's acks, which start the run that follows."""


@dataclass
class AtWork:
    """Report of a node's end to the other nodes of its run."""

    tried_again_in: float = 0.0
    """Seconds until the node is tried again; the others wait for it meanwhile. 0: it is not tried again."""
    again: str = ""
    """Reason for a run that is to follow at once; empty if there is none."""
    well: bool = False
    """Whether the node ended in good order: another run at once would find more to do for it, if there is more. If not,
    what is left for it waits."""
    worked: bool = False
    """Whether there was something to do."""
    late: UnderWay | None = None
    """The run, if its acks had ended before this node: then no other node hears `again` or acks what this one did."""

    left: int | None = None
    """Number of records that the run may still read; None: no limit."""

    @property
    def follows(self) -> UnderWay | None:
        """The run that this node itself has to have followed by another; None if there is no need."""
        return self.late if self.again or self.worked else None


@contextmanager
def at_work(pipeline_id: str, run_id: str, node: str) -> Iterator[AtWork]:
    """Tells the other nodes, while the block runs, that this node is at work, and after it that it has ended."""
    with opened(pipeline_id, run_id) as context:
        broker, ends = context.broker, AtWork()

        def say(seconds: float = AT_WORK, again: str = "", *, begins: bool = False) -> Heard:
            try:
                return broker.runs.tell_at_work(run_id, node, seconds, again, begins=begins)
            except BrokerUnavailable as error:
                log.warning("the other nodes of the run do not hear of %s: %s", node, error)
                return Heard.NOBODY

        def goes_on() -> bool:
            say()
            return True

        say(begins=True)
        try:
            with every(f"{node} at work", AT_WORK / 3, goes_on):
                yield ends
        finally:
            over = 0.0 if ends.well else -1.0
            later = ends.tried_again_in + AT_WORK if ends.tried_again_in else 0.0
            heard = say(later or over, ends.again, begins=later > 0)
            with suppress(BrokerUnavailable):
                # Decided by the answer to that last word: acks that heard it may have ended a moment later.
                course = broker.runs.under_way(run_id) if heard is Heard.WITHOUT_ACKS else None
                if course is not None and course.after is None:
                    ends.late, ends.left = course, may_read(context, course)


def may_read(context: Context, course: UnderWay) -> int | None:
    """Returns the number of records that this run may still read; None: no limit."""
    if course.records is None:
        return None
    return max(0, course.base + course.records - records_read(context))
