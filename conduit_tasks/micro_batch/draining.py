"""Draining of a run: its nodes work side by side, and wait for each other until nothing is left (DESIGN "One run").

Each node is a task of the run that works through micro-batches: sources open and read the next one while destinations
deliver the one before, within the lag budget. The bell wakes a node that waits; a node ends when the nodes before it
have ended and nothing is left. A node that never began (no slot was free for it) is not waited for: it may need the
slot of the node that waits. What is left over then goes to the next run, which is started at once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from conduit_tasks.errors import Fenced, LeaseHeld, Outdated, PipelineStopped
from conduit_tasks.micro_batch.asking import failed_to_read
from conduit_tasks.micro_batch.at_work import may_read
from conduit_tasks.micro_batch.context import Context
from conduit_tasks.micro_batch.every import keeping
from conduit_tasks.micro_batch.forgotten import remember
from conduit_tasks.micro_batch.pipeline_file import PipelineFile
from conduit_tasks.micro_batch.plan import NODE as PLAN
from conduit_tasks.micro_batch.plan import Next, halted_destinations, moved, open_next
from conduit_tasks.micro_batch.process import NODE as PROCESSORS
from conduit_tasks.micro_batch.seal import seal_if_complete
from conduit_tasks.micro_batch.visibility import extend_visibility
from conduit_tasks.micro_batch.wake import Watch
from conduit_tasks.topology import Node

if TYPE_CHECKING:
    from conduit_tasks.broker.broker import MicroBatch
    from conduit_tasks.broker.runs import UnderWay
    from conduit_tasks.topology import Pipeline

log = logging.getLogger(__name__)

BEGINS_WITHIN = 5.0
"""Seconds after the run's plan in which a node's task has begun if there is a slot for it."""
NEVER = 60.0
"""Seconds without any node at work after which the acks no longer wait for a task that has not begun."""
LOOK = 1.0
"""Seconds between two looks of a node that waits, if the bell does not ring."""
PLANS_AGAIN = 1.0
"""Seconds between two looks at sources that had nothing new, at most."""
WHOLE = 10.0
"""Seconds between two full queries of the sources in a run that lasts; in between it looks at them as `wake` does."""
BUSY = 0.1
"""Seconds until the next look at sources that had something new, in a run that lasts; then ever longer."""
TAKES_OVER = 60.0
"""Seconds for which a node waits for the same node of the run that takes over."""


@dataclass(frozen=True)
class Ended:
    """Reason why a node has nothing more to do in this run. `again`: there is more, for a run that follows at once;
    `recovering`: there is more, and it is too early to try it again."""

    reason: str
    again: bool = False
    recovering: bool = False


@dataclass
class Draining:
    """One node of a run that waits for the others. `limit`: seconds after the run's beginning in which micro-batches
    are opened."""

    context: Context
    run: str
    limit: float
    _bell: str = "0-0"
    _planned: float = field(default=-PLANS_AGAIN)
    _pause: float = BUSY
    _asked: float = -WHOLE
    _watch: Watch | None = None
    _file: PipelineFile = field(init=False)
    _busy: float = field(init=False)

    def __post_init__(self) -> None:
        self._file, self._busy = PipelineFile(self.context), time.monotonic()

    def close(self) -> None:
        """Closes the watch of the sources."""
        if self._watch is not None:
            self._watch.close()

    def slices(self, source_id: str) -> MicroBatch | Ended:
        """Returns the unsealed micro-batch that holds slices for this source to read; opens the next one if none is
        open. Waits as long as other nodes of the run are at work on what has to come before. Raises PipelineStopped."""
        context, node = self.context, Node.source(source_id)
        for course, found in self._unsealed():
            if isinstance(found, Ended):
                return found
            if course is not None and (over := _handed_over(course, node)):
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
            if course is not None and (over := _handed_over(course, PROCESSORS)):
                return over
            if found is not None and PROCESSORS in found.missing and (early or found.missing == [PROCESSORS]):
                return found
            before = [s.node for s in self.context.pipeline.sources]
            if course is None or not self._any_at_work(course, before):
                return Ended("nothing more is read")
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
            if course is not None and (over := _handed_over(course, node)):
                return over
            if broker.micro_batches.latest_sealed() > sealed or (early and broker.micro_batches.unsealed() is not None):
                return True
            if course is None or not self._any_at_work(course, before):
                return False
            self._wait()

    def over(self, since: str) -> bool:
        """Returns whether everything that acks wait for has ended; if not, waits for the bell, which may have rung
        since `since`. Acks have no slot that a node needs: they wait for a while for a node that has not begun."""
        course, now = self._course(), time.monotonic()
        if course is None:
            return True
        nodes = [*before_destinations(self.context.pipeline), *_nodes(self.context.pipeline)]
        # The nodes of the run that takes over are waited for by its own acks.
        if self._any_at_work(replace(course, before=None, after=None), nodes):
            self._busy = now
        elif course.after is not None or all(course.began_at(node) for node in nodes) or now - self._busy > NEVER:
            return True
        self.context.broker.runs.await_bell(since, LOOK)
        return False

    def unheard(self, course: UnderWay) -> str:
        """Names the nodes that have not said how they ended: they never began, or were killed. Empty if all did."""
        nodes = [*before_destinations(self.context.pipeline), *_nodes(self.context.pipeline)]
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

    def lingers(self, seconds: float = LOOK) -> bool:
        """Returns whether the run lasts, for a node that can do nothing now: it is stopped, down, or failed a moment
        ago. Waits so many seconds for that to change. Raises PipelineStopped."""
        until = time.monotonic() + seconds
        while True:
            self._bell = self.context.broker.runs.bell()
            if self._stopped():
                return False
            course = self._course()
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
        return _handed_over(course, node)

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
        """Returns whether the run has lasted as long as it may, longer while another is about to take over; or its
        scheduler stops."""
        young = course.after is not None and course.now - course.after.since < TAKES_OVER
        return course.over or (course.now - course.since > self.limit and not young)

    def _lasts(self, course: UnderWay) -> bool:
        return course.lasts and not self._past(course)

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
        if course.lasts:
            if not self._due():
                return None
        else:
            self._wait(self._planned + PLANS_AGAIN - time.monotonic())
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
        self._planned, self._pause = time.monotonic(), BUSY
        broker.runs.ring("opened")
        return None

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
        if self._any_at_work(course, behind):
            if found.looked:
                self._planned = time.monotonic()
            self._wait()
            return None
        if found.budget and not behind:
            return None  # delivered between the two looks
        # Each of them has no slot, ended before there was work for it, or has gone silent.
        if missed := [node for node in behind if course.lasts or not course.waits(node)]:
            return Ended(f"{', '.join(missed)} had no slot, or ended before: the next run goes on", again=True)
        if course.lasts:
            self._rest()
            return None
        return Ended(found.reason, recovering=found.recovering)

    def _rest(self) -> None:
        """Makes the next look a little later than this one was, as nothing was new."""
        self._planned, self._pause = time.monotonic(), min(1.5 * self._pause, PLANS_AGAIN)

    def _due(self) -> bool:
        """Returns whether the sources are to be asked in full, under a lease: something is new or
        left, or they were not asked for a while. Waits a moment if it is too early to look."""
        now = time.monotonic()
        if (early := self._planned + self._pause - now) > 0:
            self._wait(early)
            return False
        if now - self._asked < WHOLE:
            self._watch = self._watch or Watch.within(self.context)
            look = self._watch.look() if self._watch is not None else None
            if look is not None and not look.news and not look.left:
                self._rest()
                return False
        self._asked = now
        return True

    def _wait_for(self, course: UnderWay, found: MicroBatch) -> Ended | None:
        """Waits for other nodes that have a share in this micro-batch. The processors wait for all sources themselves,
        so while a source is missing only sources are waited for: otherwise two nodes would wait for each other."""
        nodes = [node for node in found.missing if node != PROCESSORS] or found.missing
        if not self._any_at_work(course, nodes):
            said = f"{', '.join(nodes)} left micro-batch {found.number} unsealed"
            # The next run reads it without a source that fails.
            left_out = failed_to_read(self.context, found)
            again = bool(left_out) or course.lasts or not any(course.waits(node) for node in nodes)
            return Ended(said, again=again)
        self._wait()
        return None

    # -- what is known ----------------------------------------------------------------------------------------------

    def _course(self) -> UnderWay | None:
        return self.context.broker.runs.under_way(self.run)

    @staticmethod
    def _any_at_work(course: UnderWay, nodes: Sequence[str]) -> bool:
        # A slot that the run before had is free once its node has ended.
        free = max(course.since, course.before.ended if course.before else 0.0)
        young = course.now - free < BEGINS_WITHIN
        others = [run for run in (course.before, course.after) if run is not None]
        return any(
            course.at_work(node) or (young and not course.began_at(node)) or any(run.at_work(node) for run in others)
            for node in nodes
        )

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


def _handed_over(course: UnderWay, node: str) -> Ended | None:
    """Returns Ended if the same node of the run that takes over goes on: it is ready, or should have been."""
    after = course.after
    if after is not None and (after.takes_over(node) or course.now - after.since > TAKES_OVER):
        return Ended(f"run {after.run} takes over")
    return None


def before_destinations(pipeline: Pipeline) -> list[str]:
    """Returns the nodes whose work a destination waits for."""
    return [*(s.node for s in pipeline.sources), *([PROCESSORS] if pipeline.processors else [])]


def _nodes(pipeline: Pipeline) -> list[str]:
    return [d.node for d in pipeline.destinations]
