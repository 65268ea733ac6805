"""Draining of a run, whose nodes work side by side: when one opens a micro-batch, waits for others, or ends because
nothing is left (docs/architecture.md, "One run").

Each node is a task of the run that works through micro-batches: sources open and read the next one while destinations
deliver the one before, within the lag budget. The bell wakes a node that waits; a node ends when the nodes before it
have ended and nothing is left. A node that never began (no slot was free for it) is not waited for: it may need the
slot of the node that waits. What is left over then goes to the next run, which is started at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conduit_tasks.errors import Fenced, LeaseHeld, Outdated
from conduit_tasks.micro_batch.asking import failed_to_read
from conduit_tasks.micro_batch.at_work import may_read
from conduit_tasks.micro_batch.course import (
    Ended,
    any_at_work,
    before_destinations,
    destination_nodes,
    handed_over,
)
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.pace import Pace
from conduit_tasks.micro_batch.pipeline_file import PipelineFile
from conduit_tasks.micro_batch.plan import NODE as PLAN
from conduit_tasks.micro_batch.plan import Next, halted_destinations, moved, open_next
from conduit_tasks.micro_batch.process import NODE as PROCESSORS
from conduit_tasks.micro_batch.seal import seal_if_complete
from conduit_tasks.micro_batch.size import Foresight
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.micro_batch.waiting import LOOK, Waiting
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.broker.runs import UnderWay

log = logging.getLogger(__name__)

NEVER = 60.0
"""Seconds without any node at work after which the acks no longer wait for a task that has not begun."""


@dataclass
class Draining(Waiting):
    """One node of a run that works through micro-batches, and waits for the others."""

    foresight: Foresight | None = None
    _file: PipelineFile = field(init=False)
    _busy: float = field(init=False)
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._file, self._busy = PipelineFile(self.context), time.monotonic()
        self._pace = Pace(self.context)

    def close(self) -> None:
        """Closes the watch of the sources."""
        self._pace.close()

    def slices(self, source_id: str) -> MicroBatch | Ended:
        """Returns the unsealed micro-batch that holds slices for this source to read; opens the next one if none is
        open. Waits as long as other nodes of the run are at work on what has to come before. Raises PipelineStopped."""
        context, node = self.context, Node.source(source_id)
        for course, found in self._unsealed():
            if isinstance(found, Ended):
                return found
            if course is not None and (over := handed_over(course, node)):
                return over
            if found is not None and node in found.missing:
                return found
            if course is None:
                return Ended("another run has begun")
            ended = self._wait_for(course, found) if found is not None else self._open(course)
            if ended is not None:
                return ended
        raise AssertionError(context)

    def staged(self, *, early: bool = False) -> MicroBatch | Ended:
        """Returns the unsealed micro-batch that all sources have staged, for the pipeline's processors; `early`: also
        one that they are still reading."""
        for course, found in self._unsealed():
            if isinstance(found, Ended):
                return found
            if course is not None and (over := handed_over(course, PROCESSORS)):
                return over
            if found is not None and PROCESSORS in found.missing and (early or found.missing == [PROCESSORS]):
                return found
            before = [s.node for s in self.context.pipeline.sources]
            if course is None or not any_at_work(course, before):
                return Ended("nothing more is read")
            if self.foresight is not None:
                self.foresight.look(found)
            self._wait()
        raise AssertionError

    def more(self, node: str, sealed: int, *, early: bool = False) -> bool | Ended:
        """Returns whether a destination that has delivered everything up to `sealed` finds more, now or after waiting
        for it; `early`: or will find more, as it is being read. Ended if another run has taken over. Raises
        PipelineStopped."""
        pipeline, broker = self.context.pipeline, self.context.broker
        before = before_destinations(pipeline)
        while True:
            self._bell = broker.runs.bell()
            if self._stopped():
                return False
            # Read before the look at the sealed micro-batches: a node that ends in between has done all that it will.
            course = self._course()
            if course is not None and (over := handed_over(course, node)):
                return over
            if broker.micro_batches.latest_sealed() > sealed or (early and broker.micro_batches.unsealed() is not None):
                return True
            if course is None or not any_at_work(course, before):
                return False
            if self.foresight is not None:
                self.foresight.look()
            self._wait()

    def over(self, since: str) -> bool:
        """Returns whether everything that acks wait for has ended; if not, waits for the bell, which may have rung
        since `since`. Acks have no slot that a node needs: they wait for a while for a node that has not begun."""
        course, now = self._course(), time.monotonic()
        if course is None:
            return True
        nodes = [*before_destinations(self.context.pipeline), *destination_nodes(self.context.pipeline)]
        # The nodes of the run that takes over are waited for by its own acks.
        if any_at_work(replace(course, before=None, after=None), nodes):
            self._busy = now
        elif course.after is not None or all(course.began_at(node) for node in nodes) or now - self._busy > NEVER:
            return True
        self.context.broker.runs.await_bell(since, LOOK)
        return False

    def unheard(self, course: UnderWay) -> str:
        """Names the nodes that have not said how they ended: they never began, or were killed. Empty if all did."""
        nodes = [*before_destinations(self.context.pipeline), *destination_nodes(self.context.pipeline)]
        missed = [node for node in nodes if not course.began_at(node) or course.silent(node)]
        return f"{', '.join(missed)} did not begin, or ended without a word" if missed else ""

    def outdated(self, error: Outdated) -> Ended:
        """Ends a node because the pipeline's file has changed since the micro-batch was opened: a run that follows at
        once reads it again. Raises `error` if this run got nowhere: the next would do no better if machines have
        different files."""
        course = self._course()
        if course is None or moved(self.context) == course.moved:
            raise error
        return Ended(str(error), again=True)

    # -- one step ---------------------------------------------------------------------------------------------------

    def _unsealed(self) -> Iterator[tuple[UnderWay | None, MicroBatch | Ended | None]]:
        """Yields the run as it was just before, and the unsealed micro-batch, again and again; seals what is staged.
        Yields Ended if the pipeline is stopped or its file has changed."""
        broker = self.context.broker
        while True:
            self._bell = broker.runs.bell()
            if self._stopped():
                yield None, Ended("the pipeline is stopped, and nothing is left in flight")
            course = self._course()
            found = broker.micro_batches.unsealed()
            if found is not None:
                try:
                    self.context.same_version(found)
                except Outdated as error:
                    yield course, self.outdated(error)
                if not found.missing:
                    if seal_if_complete(self.context, found.number):
                        broker.runs.ring("sealed")
                    continue
            yield course, found

    def _open(self, course: UnderWay) -> Ended | None:
        """Opens the next micro-batch. Returns None if it is open or may come: look again."""
        context, broker = self.context, self.context.broker
        if (over := self._over(course)) is not None:
            return over
        if not self._may_look(course):
            return None
        left = may_read(context, course)
        limits = None if left is None else {"max-records": left}
        try:
            with (
                broker.leases.acquire(PLAN, context.owner) as lease,
                keeping(lease),
                extend_visibility(context, again=False),
            ):
                if broker.micro_batches.unsealed() is not None or remember(context):
                    return None
                found = open_next(context, limits)
            self._tell(found)
        except (Fenced, LeaseHeld):
            self._wait()
            return None
        if found.number is None:
            return self._nothing(course, found)
        log.log(logging.DEBUG if course.lasts else logging.INFO, "%s", found.reason)
        self._pace.found()
        broker.runs.ring("opened")
        return None

    def _may_look(self, course: UnderWay) -> bool:
        """Returns whether the sources are to be asked; waits a moment if it is too early for that."""
        if not course.lasts:
            self._wait(self._pace.until_planned())
            return True
        if (early := self._pace.early()) > 0:
            self._wait(early)
            return False
        return self._pace.due()

    def _tell(self, found: Next) -> None:
        """Tells the broker which sources were left out, so that the acks fail, and which no longer are."""
        told = {**dict.fromkeys(found.asked.well, ""), **found.asked.told()}
        for source, why in told.items():
            self.context.broker.runs.tell_left_out(self.run, source, why)

    def _over(self, course: UnderWay) -> Ended | None:
        """Returns why nothing more is opened in this run; None if more may be opened."""
        if self.context.broker.lifecycle.stored_status() == "stopping":
            return Ended("the pipeline is stopping: nothing new is read")
        if course.over:
            return Ended("the scheduler stops: the next run goes on", again=True)
        if may_read(self.context, course) == 0:
            return Ended(f"{course.records:,} records are read, as many as this run may")
        if self._past(course) and (course.lasts or moved(self.context) != course.moved):
            return Ended(f"the run has lasted {self.limit:g} s: the next one goes on", again=True)
        if self._file.changed():
            return Ended("the pipeline's file has changed: the next run goes on with it", again=True)
        return None

    def _nothing(self, course: UnderWay, found: Next) -> Ended | None:
        """Decides how to go on if nothing was opened: waits while a destination that is behind is at work, and in a run
        that lasts also if none is behind."""
        pipeline, broker = self.context.pipeline, self.context.broker
        sealed, *cursors = broker.deliveries.cursors([d.id for d in pipeline.destinations])
        halted = halted_destinations(self.context)
        behind = [d.node for d, cursor in zip(pipeline.destinations, cursors) if cursor < sealed and d.id not in halted]
        if any_at_work(course, behind):
            if found.looked:
                self._pace.looked()
            self._wait()
            return None
        if found.budget and not behind:
            return None  # delivered between the two looks
        # Each of them has no slot, ended before there was work for it, or has gone silent.
        if missed := [node for node in behind if course.lasts or not course.waits(node)]:
            return Ended(f"{', '.join(missed)} had no slot, or ended before: the next run goes on", again=True)
        if course.lasts:
            self._pace.rest()
            return None
        return Ended(found.reason, recovering=found.recovering)

    def _wait_for(self, course: UnderWay, found: MicroBatch) -> Ended | None:
        """Waits for other nodes that have a share in this micro-batch. The processors wait for all sources themselves,
        so while a source is missing only sources are waited for: otherwise two nodes would wait for each other."""
        nodes = [node for node in found.missing if node != PROCESSORS] or found.missing
        if not any_at_work(course, nodes):
            said = f"{', '.join(nodes)} left micro-batch {found.number} unsealed"
            # The next run reads it without a source that fails.
            left_out = failed_to_read(self.context, found)
            again = bool(left_out) or course.lasts or not any(course.waits(node) for node in nodes)
            return Ended(said, again=again)
        self._wait()
        return None
